// Package policy is allocnet's CNI plugin "policy". It enforces network policies: that of its
// configuration, for all allocations in the network, and that of the allocation, which the
// capability of the same name passes on, with the ID and the labels by which policies of others
// select the allocation. A packet must be allowed by both. The plugin has no reference plugin.
//
// It comes after all plugins that make interfaces or choose addresses:
//
//	{"type": "policy", "capabilities": {"policy": true}, "policy": {"presets": ["no-metadata"]}}
//
// # How a policy takes effect
//
// Attachments with the same policies share chains of rules (package ruleset). A link of ptp
// leads to them by its group. Until the end of ADD it is in a group whose packets are
// dropped, so none passes before the policy is active. The address of an attachment on a
// bridge leads to the chains by an element, and the traffic within the bridge passes them
// because the plugin has the bridge call the host's IP rules (br_netfilter).
//
// Rules that select peers by labels look into a set that each selected attachment joins in
// its ADD. Package policystate stores who uses which policy, and who has which labels.
package policy
