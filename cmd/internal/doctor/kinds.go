package doctor

// Kinds are all kinds of findings.
var Kinds = []Kind{
	{"not-checked", Error, "what cannot be examined does not count as healthy", false},
	{"privileges", Error, "links, routes and rules of the host can only be read and changed with CAP_NET_ADMIN and CAP_SYS_ADMIN", false},
	{"kernel-feature", Error, "a plugin of a configured network needs it, so setups fail", false},
	{"nftables", Error, "published ports, masquerading and the firewall of native plugins are elements of nftables", false},
	{"ipv6-disabled", Error, "the network has IPv6 addresses, which the kernel refuses to add", false},

	{"forwarding-off", Error, "packets between allocations and other hosts are dropped; plugins switch forwarding on, so another program has switched it off", true},
	{"routers-ignored", Warning, "the host loses its IPv6 default route when the lifetime of the route is over", true},
	{"rp-filter", Warning, "an answer that leaves through another interface than the request came in is dropped; allocations in several networks, and hosts with several uplinks, have such answers", false},
	{"route-localnet", Error, "published ports cannot be reached at 127.0.0.1 of the host", true},
	{"route-localnet-open", Warning, "other hosts on that link can reach services that listen only on 127.0.0.1 of this host", false},

	{"forward-drop", Error, "the host drops packets that it forwards, and no rule accepts those of allocations", true},
	{"foreign-drop", Error, "a packet has to pass the chains of all tables; what this one drops is lost even if allocnet's tables accept it", false},
	{"no-firewall-plugin", Warning, "the host drops packets that it forwards, and nothing accepts those of this network", false},
	{"foreign-nat", Error, "the rule of the other program comes first, so connections to the published port do not reach the allocation", false},
	{"port-drop", Warning, "what the rule drops does not reach the allocation, although the port is published and the network is healthy", false},
	{"port-listener", Warning, "connections to the host port, from other hosts and from this one, go to the allocation and not to that process", false},
	{"iptables-mixed", Warning, "packets have to pass the rules of both; each program lists only its own, so a rule that drops packets is easily missed", false},
	{"firewalld", Error, "allocations must be sources of a zone of firewalld, which can be done only over D-Bus", false},

	{"guard-lost", Warning, "the container can send from any address, and its host ports and masquerading are gone, if it had them", false},

	{"subnet-overlap", Error, "packets to these addresses take the other way: allocations are unreachable, or other hosts are, without an error anywhere", false},
	{"subnet-reserved", Error, "the kernel and other programs treat these addresses differently from those of hosts: setups fail, or packets are lost without an error", false},
	{"subnet-shared", Error, "two networks lease the same addresses, so two allocations can have the same one", false},
	{"bridge-subnet", Error, "a bridge keeps its first subnet, so every setup in the network fails", false},
	{"address-outside-subnet", Error, "flanneld has leased another subnet for this host: others no longer send packets for the former one here, and another host may get it", false},
	{"resolver-in-subnet", Error, "names cannot be resolved: packets to the name server go to the network of allocations", false},

	{"settings", Error, "the daemon does not start or reload with these settings", false},
	{"configuration-skipped", Error, "the network of the file does not exist for setups, or an older content of the file is in use", false},
	{"configuration-shadowed", Warning, "an earlier file has the same network name, so this one has no effect", false},
	{"network-missing", Error, "the settings name a network that does not exist, so setups fail", false},
	{"configuration-invalid", Error, "a native plugin refuses its configuration, so every setup in the network fails", false},

	{"not-ready", Error, "setups cannot be expected to work", false},
	{"not-served", Warning, "the daemon works without it, and tries again", false},

	{"plugin-dir", Warning, "plugins are not found there", false},
	{"plugin-dir-writable", Error, "plugins run as root: who can write there becomes root", false},
	{"plugin-missing", Error, "every setup in the network fails", false},
	{"plugin-broken", Error, "the file cannot be run, so runtimes that call the plugin fail", false},
	{"plugin-version", Error, "the plugin refuses the cniVersion of the network, so every setup fails", false},

	{"record-unreadable", Error, "operations on the allocation fail", false},
	{"netns-gone", Warning, "the allocation holds addresses, ports and rules, and cannot work any more", false},
	{"interrupted", Warning, "an operation did not end, so the network may exist in part", false},
	{"leftover", Warning, "links, leases, rules or ports of an allocation without a record stay for ever", false},
	{"lease-without-owner", Warning, "the address cannot be leased again until the lease is removed", true},
	{"drift", Error, "connections of the allocation may fail, or may pass although they should be dropped", false},

	{"netns-stale", Warning, "a network namespace cannot be created under this name", true},
	{"netns-orphan", Warning, "until it is removed, it holds memory of the kernel", false},

	{"conntrack-full", Warning, "at the limit, the kernel drops the packets of all new connections", false},
	{"neighbour-full", Warning, "at the limit, the kernel reaches no new address (neighbour table overflow)", false},
	{"inotify-full", Warning, "at the limit, the daemon cannot watch its configuration directory", false},
	{"namespaces-full", Warning, "at the limit, no network namespace can be created", false},
	{"addresses-exhausted", Error, "every setup in the network fails until an allocation is removed", false},
	{"addresses-full", Warning, "without a free address, every setup in the network fails", false},
	{"bridge-full", Warning, "a bridge has at most 1023 ports; then every setup in the network fails", false},
	{"files-full", Warning, "at the limit, no process can open another file", false},

	{"disk-full", Error, "records and leases cannot be written, so setups fail; teardowns need no space", false},
	{"state-dir", Error, "operations are refused, because other users could change records", false},
	{"clock", Warning, "ages, certificates and logs are wrong, and files of the future are not noticed when they change", false},
}
