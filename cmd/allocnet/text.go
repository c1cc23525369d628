package main

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
)

// join joins the non-empty texts.
func join(list []string) string {
	var given []string
	for _, s := range list {
		if s != "" {
			given = append(given, s)
		}
	}
	return strings.Join(given, ", ")
}

// hostPort returns the address and port on the host.
func hostPort(m portmap.Mapping) string {
	port := strconv.Itoa(m.HostPort)
	if m.HostIP == "" {
		return port
	}
	return net.JoinHostPort(m.HostIP, port)
}

// shortPorts lists the published ports. The protocols of one port form one item, and so do
// consecutive ports.
func shortPorts(ports []portmap.Mapping) string {
	unlabelled := slices.Clone(ports)
	for i := range unlabelled {
		unlabelled[i].Label = ""
	}
	var texts []string
	for _, i := range portItems(unlabelled) {
		texts = append(texts, i.String())
	}
	return strings.Join(texts, ", ")
}

// portItems returns one item for the protocols of one port, and for consecutive ports with
// the same label.
func portItems(ports []portmap.Mapping) []portItem {
	var each []portItem
	places := map[portmap.Mapping]int{} // indices of the items, by everything except the protocol
	for _, p := range ports {
		key := p
		key.Protocol = ""
		if at, known := places[key]; known {
			each[at].protocols += "+" + p.Protocol
			continue
		}
		places[key] = len(each)
		each = append(each, portItem{Mapping: p, count: 1, protocols: p.Protocol})
	}
	var items []portItem
	for _, next := range each {
		if last := len(items) - 1; last >= 0 && items[last].continues(next) {
			items[last].count++
		} else {
			items = append(items, next)
		}
	}
	return items
}

// portItem is a range of ports with the same protocols and label.
type portItem struct {
	portmap.Mapping
	count     int
	protocols string
}

func (i portItem) continues(next portItem) bool {
	return next.HostIP == i.HostIP && next.Label == i.Label && next.protocols == i.protocols &&
		next.HostPort == i.HostPort+i.count && next.ContainerPort == i.ContainerPort+i.count
}

func (i portItem) String() string {
	from, to := i.ends()
	return from + "->" + to + "/" + i.protocols
}

// ends returns the ports on the host and in the sandbox.
func (i portItem) ends() (from, to string) {
	from, to = hostPort(i.Mapping), strconv.Itoa(i.ContainerPort)
	if i.count > 1 {
		from += fmt.Sprintf("-%d", i.HostPort+i.count-1)
		to += fmt.Sprintf("-%d", i.ContainerPort+i.count-1)
	}
	return from, to
}

func addressesOf(r *configurator.Record) string {
	if r.Status == nil {
		return ""
	}
	if r.Status.Address == r.Status.AddressIPv6 {
		return r.Status.Address
	}
	return join([]string{r.Status.Address, r.Status.AddressIPv6})
}

func networkNames(r *configurator.Record) string {
	names := make([]string, len(r.Networks))
	for i, n := range r.Networks {
		names[i] = n.Network
	}
	return strings.Join(names, ", ")
}
