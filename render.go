package allocnet

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// ResolvConf returns the content of an /etc/resolv.conf for an allocation, in the format
// of resolv.conf(5): a line "search" with all search domains, a line "nameserver" per
// server, and a line "options". Without Searches, the line "search" has the Domain. It
// returns nil if dns is nil or empty: the allocation then has no resolver of its own and
// usually gets a copy of the host's file.
//
// ResolvConf omits values that would break the format: empty ones and those with white
// space or control characters. Note that most resolvers use only the first three servers.
func ResolvConf(dns *DNS) []byte {
	if dns == nil {
		return nil
	}
	searches := words(dns.Searches)
	if len(searches) == 0 {
		searches = words([]string{dns.Domain})
	}
	var b bytes.Buffer
	writeLine(&b, "search", searches)
	for _, server := range words(dns.Servers) {
		writeLine(&b, "nameserver", []string{server})
	}
	writeLine(&b, "options", words(dns.Options))
	return b.Bytes()
}

// writeLine writes a keyword with its values, if there are any.
func writeLine(b *bytes.Buffer, keyword string, values []string) {
	if len(values) > 0 {
		b.WriteString(keyword + " " + strings.Join(values, " ") + "\n")
	}
}

// words returns the values that consist of one word.
func words(values []string) []string {
	return slices.DeleteFunc(slices.Clone(values), func(v string) bool {
		return v == "" || strings.ContainsFunc(v, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) })
	})
}

// Host is one line of a hosts file.
type Host struct {
	Address string
	Names   []string // the first one is the canonical name
}

// localHosts are the lines of every hosts file.
var localHosts = []Host{
	{"127.0.0.1", []string{"localhost"}},
	{"::1", []string{"localhost", "ip6-localhost", "ip6-loopback"}},
	{"fe00::", []string{"ip6-localnet"}},
	{"ff00::", []string{"ip6-mcastprefix"}},
	{"ff02::1", []string{"ip6-allnodes"}},
	{"ff02::2", []string{"ip6-allrouters"}},
}

// Hosts returns the content of an /etc/hosts for an allocation, in the format of hosts(5):
// first the lines of localhost and of the IPv6 multicast groups, then the allocation's
// addresses with its host name, then the extra lines. If the host name has a domain, its
// short form follows it. Resolvers use the first line that contains a name, so an extra
// line cannot replace an earlier one.
//
// The lines with the host name are omitted if hostname is empty, or if status is nil or
// has no address. Like ResolvConf, Hosts omits words that would break the format.
func Hosts(status *Status, hostname string, extra ...Host) []byte {
	lines := slices.Clone(localHosts)
	if status != nil && hostname != "" {
		names := []string{hostname}
		if short, _, qualified := strings.Cut(hostname, "."); qualified {
			names = append(names, short)
		}
		lines = append(lines, Host{status.Address, names})
		if status.AddressIPv6 != status.Address {
			lines = append(lines, Host{status.AddressIPv6, names})
		}
	}
	var b bytes.Buffer
	for _, line := range append(lines, extra...) {
		address, names := words([]string{line.Address}), words(line.Names)
		if len(address) > 0 && len(names) > 0 {
			b.WriteString(address[0] + "\t" + strings.Join(names, " ") + "\n")
		}
	}
	return b.Bytes()
}

// Environment returns environment variables, as "NAME=value", that describe the network of
// an allocation to its processes. It omits variables without a value. It returns nil if
// status is nil. The order of the variables is:
//
//	ALLOCNET_INTERFACE           the selected interface
//	ALLOCNET_IP                  its address: IPv4 or, where it has none, IPv6
//	ALLOCNET_IPV6                its IPv6 address
//	ALLOCNET_PORT_<LABEL>        the port on which the process should listen
//	ALLOCNET_HOST_PORT_<LABEL>   the host port that is forwarded to it
//	ALLOCNET_HOST_IP_<LABEL>     the host address on which it is published, if one was requested
//
// Published ports with a label have variables, in the order of Status.Ports. <LABEL> is the
// label in upper case; every character other than an ASCII letter, a digit or '_' becomes
// '_'. If several ports have the same label, such as a range or a port for both tcp and
// udp, the first one is used.
func Environment(status *Status) []string {
	if status == nil {
		return nil
	}
	var list []string
	seen := map[string]bool{}
	set := func(name, value string) {
		if value != "" && !seen[name] {
			seen[name] = true
			list = append(list, name+"="+value)
		}
	}
	set("ALLOCNET_INTERFACE", status.InterfaceName)
	set("ALLOCNET_IP", status.Address)
	set("ALLOCNET_IPV6", status.AddressIPv6)
	for _, p := range status.Ports {
		label := variable(p.Label)
		if label == "" || seen["ALLOCNET_PORT_"+label] {
			continue
		}
		set("ALLOCNET_PORT_"+label, strconv.Itoa(p.ContainerPort))
		set("ALLOCNET_HOST_PORT_"+label, strconv.Itoa(p.HostPort))
		set("ALLOCNET_HOST_IP_"+label, p.HostIP)
	}
	return list
}

// variable returns a label in the form that it has in the name of a variable.
func variable(label string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_':
			return r
		}
		return '_'
	}, label)
}
