// Package firewall is the native firewall plugin: what an allocation sends may be
// forwarded, and the answers to it, also where the host's policy is to drop.
//
// Without a backend in its configuration the addresses become elements of
// allocnet's own tables (package ruleset), which the opening of package opening
// lets through iptables. The backend iptables is the reference plugin's layout,
// rule for rule, so that either plugin takes the other's away. Where firewalld runs
// (package firewalld), the addresses become sources of one of its zones as well.
package firewall
