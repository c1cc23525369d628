package allocnet

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// ResolvConf returns the content of an /etc/resolv.conf for an allocation, as
// resolv.conf(5) has it: a line "search" with all search domains, a line "nameserver"
// per server, and a line "options". Without Searches, the Domain is searched. It is nil
// where dns names nothing, or is nil: then the allocation has no resolver of its own,
// and usually gets a copy of the host's file.
//
// Values that would break the format, as they are empty or hold white space or control
// characters, are left out. Resolvers look at three servers at most.
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

// words are the values that are one word each.
func words(values []string) []string {
	return slices.DeleteFunc(slices.Clone(values), func(v string) bool {
		return v == "" || strings.ContainsFunc(v, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) })
	})
}

// Host is a line of a hosts file.
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

// Hosts returns the content of an /etc/hosts for an allocation, as hosts(5) has it: the
// lines of localhost and of the IPv6 multicast groups, then the allocation's addresses
// with its host name, then the extra lines. A host name with a domain is followed by its
// short form. Resolvers take the first line with a name, so an extra line does not
// replace an earlier one.
//
// Without a host name, or without addresses in the status, which may be nil, there is no
// line of its own. Words that would break the format are left out, as ResolvConf does.
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

// Environment returns the variables that tell the processes of an allocation about its
// network, as "NAME=value", in this order. What the status does not have is left out; a
// nil status has nothing.
//
//	ALLOCNET_INTERFACE           the selected interface
//	ALLOCNET_IP                  its address: IPv4 or, where it has none, IPv6
//	ALLOCNET_IPV6                its IPv6 address
//	ALLOCNET_PORT_<LABEL>        the port on which the process is to listen
//	ALLOCNET_HOST_PORT_<LABEL>   the port of the host that leads there
//	ALLOCNET_HOST_IP_<LABEL>     the address of the host on which it is published, if one was named
//
// The variables of ports are those of published ports with a label, in the order of the
// ports. In the names of variables a label is in upper case, and what is neither a
// letter of ASCII, a digit nor '_' in it is '_'. Of several ports with one name, such as
// a range or tcp and udp, the first one counts.
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

// variable is a label as a part of a variable's name.
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
