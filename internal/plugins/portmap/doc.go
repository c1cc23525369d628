// Package portmap is the native portmap plugin: connections to ports of the host
// are led to a sandbox.
//
// Without a backend in its configuration, and without keys that one of the
// backends is needed for, host ports become elements of allocnet's own tables
// (package ruleset). The backends iptables and nftables are the reference
// plugin's layouts, rule for rule, so that either plugin finds and takes away what
// the other made.
package portmap
