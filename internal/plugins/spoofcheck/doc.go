// Package spoofcheck implements macspoofchk of the bridge plugin: nftables
// rules that drop frames from a bridge port if their source is not the MAC of
// the container's interface.
//
// The rules are in the table "nat" of family bridge and have the reference
// plugin's layout, so that each plugin can remove the other's rules. The
// comment of the rules in the last chain names the owner; the reference plugin
// does not read it.
package spoofcheck
