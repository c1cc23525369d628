// Package bridge is allocnet's native CNI plugin "bridge". It connects the
// container to the host with a veth whose host end is a port of a bridge. Package
// veth has what ptp does as well: the addresses of an IPAM plugin, masquerading,
// and the removal of an attachment.
//
// ADD is a list of steps, each with its undo (bridge.go). The plugin makes the
// bridge if it does not exist, and never removes it. The bridge gets the gateways'
// addresses (gateway.go). For a VLAN, an interface of that VLAN gets them instead
// (vlan.go); a bridge that exists must filter VLANs already, because the plugin
// does not change which frames other ports receive.
//
// The source guard (guard.go) is on by default: frames from a port are dropped
// unless their MAC and addresses are those of the attachment, which are elements
// of allocnet's table of family bridge. macspoofchk (spoof.go) checks the MAC
// alone, with the rules of the reference plugin (package spoofcheck).
package bridge
