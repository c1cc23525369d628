// Package cni runs the commands of the CNI plugin "allocnet" on a configurator: in the
// daemon, or in the process of the plugin if the daemon is not running. Both do the
// same work on the same records. It also holds the protocol between the plugin and the
// daemon, see [Request].
//
// # The configuration
//
// A configuration of type "allocnet" delegates to networks of the host:
//
//	{"type": "allocnet", "delegate": "NAME"}
//	{"type": "allocnet", "delegates": ["NAME", "NAME"]}
//	{"type": "allocnet", "plugins": [{"type": "bridge", ...}, ...]}
//	{"type": "allocnet"}
//
// by name, or as its own chain of plugins; the last form uses the host's default
// networks. The first network is the primary one: it gets the interface that the runtime
// names, continues from the prevResult, if there is one, and gets the requested host
// ports, addresses and MAC. The others get eth1, eth2 and so on, or eth0 if eth1 is used.
// The result consists of the results of all networks in their order.
//
// "labelsFrom" and "policyFrom" name CNI_ARGS that are labels and the policy of the
// container. With the capability of pod annotations, those of CRI are read as well. Keys and values
// from all of these, and from the capability labels, that are not valid in labels are escaped.
//
// "args" is passed to the plugins of a chain; it is not possible with named networks. The
// program allocnet-cni reads "socket", "idleTimeout" and "settings". Any other key is an
// error that names it, unless it begins with "cni.dev/", which the specification reserves.
// In "runtimeConfig" the case of names is ignored, because go-cni spells them differently.
//
// # Allocations
//
// An attachment, which is a container and an interface, is one allocation. Its scope is
// the network of the runtime's configuration: DEL and GC do not change anything else on
// the host. If the name of a configuration may change while attachments exist, it has a
// constant "scope" instead. A DEL under another name is accepted if the container, the
// interface and the network namespace, if it exists, are the same; otherwise it is
// refused.
//
// # Errors
//
// An error of a plugin is returned unchanged, except that quoted JSON, which may come from
// the configuration, is removed.
package cni
