package main

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
)

// mark is the sign of success: a tick on a terminal, a word elsewhere.
func (a *app) mark() string {
	if a.out.terminal {
		return "✓"
	}
	return "ok:"
}

// join leaves out what is empty.
func join(list []string) string {
	var given []string
	for _, s := range list {
		if s != "" {
			given = append(given, s)
		}
	}
	return strings.Join(given, ", ")
}

// hostPort is the place where a port is published.
func hostPort(m portmap.Mapping) string {
	port := strconv.Itoa(m.HostPort)
	if m.HostIP == "" {
		return port
	}
	return net.JoinHostPort(m.HostIP, port)
}

// shortPorts lists the published ports: the protocols of one port are one item,
// and so are ports in a row.
func shortPorts(ports []portmap.Mapping) string {
	var items []portItem
	for _, p := range ports {
		at := slices.IndexFunc(items, func(i portItem) bool {
			return i.HostIP == p.HostIP && i.HostPort == p.HostPort && i.ContainerPort == p.ContainerPort
		})
		if at >= 0 {
			items[at].protocols += "+" + p.Protocol
		} else {
			items = append(items, portItem{Mapping: p, count: 1, protocols: p.Protocol})
		}
	}
	var texts []string
	for i := 0; i < len(items); {
		first := items[i]
		for i++; i < len(items) && first.continues(items[i]); i++ {
			first.count++
		}
		texts = append(texts, first.String())
	}
	return strings.Join(texts, ", ")
}

// portItem is a row of ports that are published alike.
type portItem struct {
	portmap.Mapping
	count     int
	protocols string
}

func (i portItem) continues(next portItem) bool {
	return next.HostIP == i.HostIP && next.protocols == i.protocols &&
		next.HostPort == i.HostPort+i.count && next.ContainerPort == i.ContainerPort+i.count
}

func (i portItem) String() string {
	from, to := hostPort(i.Mapping), strconv.Itoa(i.ContainerPort)
	if i.count > 1 {
		from += fmt.Sprintf("-%d", i.HostPort+i.count-1)
		to += fmt.Sprintf("-%d", i.ContainerPort+i.count-1)
	}
	return from + "->" + to + "/" + i.protocols
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

// age is a duration in its largest unit.
func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// span is a duration as people measure it.
func span(d time.Duration) string {
	switch ms := float64(d) / float64(time.Millisecond); {
	case ms < 10:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 1000:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

func indent(text, by string) string {
	return by + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+by)
}
