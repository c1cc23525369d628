// Package portmap is allocnet's native CNI plugin "portmap". It redirects
// connections to ports of the host to a container.
//
// Without a configured backend, and without keys that require one, host ports
// become elements of allocnet's tables (package ruleset). The backends iptables
// and nftables create the reference plugin's rules, so that each plugin finds and
// removes the other's.
package portmap
