// Package firewall is allocnet's native CNI plugin "firewall". It makes the host
// forward an allocation's packets and the replies to them, even if the host's
// FORWARD policy is to drop.
//
// Without a configured backend, the addresses become elements of allocnet's tables
// (package ruleset), and the forward-accept rule (package iptables) makes iptables
// accept their packets. The backend iptables creates the reference plugin's rules,
// so that each plugin can remove the other's. If firewalld is running (package
// firewalld), the addresses also become sources of one of its zones.
//
// With the ingressPolicy "published", which the reference plugin does not have, the host
// forwards from other networks and from other hosts only what is for host ports.
package firewall
