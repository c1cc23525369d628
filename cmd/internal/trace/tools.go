package trace

import (
	"strings"

	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/names"
)

// own is the name of allocnet among the tools.
const own = "allocnet"

// tools are the programs that own tables of nftables, by the name of the table.
var tools = map[string]string{
	"firewalld":              "firewalld",
	"kube-proxy":             "kube-proxy",
	"netavark":               "Podman",
	"docker-bridges":         "Docker",
	"libvirt_network":        "libvirt",
	"f2b-table":              "fail2ban",
	"io.systemd.nat":         "systemd-networkd",
	"cni_hostport":           "the reference plugin portmap",
	"cni_plugins_masquerade": "the reference plugins",
	"calico":                 "Calico",
	"incus":                  "Incus",
	"lxd":                    "LXD",
}

// chainTools are the programs that make chains of iptables, by the beginning of the name.
var chainTools = []struct{ prefix, tool string }{
	{"DOCKER", "Docker"},
	{"KUBE-", "kube-proxy"},
	{"ufw", "ufw"},
	{"CNI-", "the reference plugins"},
	{iptables.AcceptChain, own},
	{"NETAVARK", "Podman"},
	{"LIBVIRT_", "libvirt"},
	{"cali-", "Calico"},
	{"CILIUM_", "Cilium"},
	{"FLANNEL-", "flannel"},
	{"f2b-", "fail2ban"},
	{"ts-", "Tailscale"},
}

// toolOf returns the program to which a table belongs, as far as names tell. The last of
// the chains is the most telling one.
func toolOf(family, table string, chains ...string) string {
	if names.IsOwnTable(table) {
		return own
	}
	if tool := tools[table]; tool != "" {
		return tool
	}
	if family != "ip" && family != "ip6" {
		return ""
	}
	switch table {
	case "filter", "nat", "mangle", "raw", "security":
	default:
		return ""
	}
	for i := len(chains) - 1; i >= 0; i-- {
		for _, t := range chainTools {
			if strings.HasPrefix(chains[i], t.prefix) {
				return t.tool
			}
		}
	}
	if chains[0] == strings.ToUpper(chains[0]) {
		return "iptables-nft"
	}
	return ""
}
