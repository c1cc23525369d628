// Package hostsnap takes and compares text snapshots of the network state of a
// host: everything that attaching a sandbox can change. A test or a demonstration
// takes one snapshot before and one after, and shows the difference.
//
// A snapshot has one line per object, which begins with its kind:
//
//	link cni0 bridge 0a:58:0a:01:00:01 mtu 1500 up
//	address cni0 10.1.0.1/24
//	route main 10.1.0.0/24 dev cni0 src 10.1.0.1 proto kernel scope link
//	rule 32766 from all lookup 254
//	iptables ip nat -A POSTROUTING -s 10.1.0.2/32 -j CNI-5ad8
//	nft table inet example
//	nft rule inet example forward Meta{Key:6 Register:1} ...
//	file /var/lib/cni/networks/example/10.1.0.2 0600 "c1\r\neth0"
//	netns /run/netns/c1
//	mount /run/netns/c1 nsfs
//	sysctl net.ipv4.ip_forward = 1
//	conntrack udp src=192.0.2.2 dst=192.0.2.1 sport=4711 dport=53 src=10.1.0.2 dst=192.0.2.2 sport=53 dport=4711
//
// # Caveats
//
// A snapshot omits state that the kernel changes by itself: IPv6 link-local and
// temporary addresses, routes learnt from router advertisements, link-local and
// multicast routes, the routes that the kernel derives from addresses in the local
// table, lifetimes, counters, carrier states. Rules are compared as a set, so Diff
// does not report a changed order of rules. A snapshot is not atomic: take it
// while nothing else changes the host.
package hostsnap

import (
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"
)

// Options select the content of a snapshot. The zero value is ready for use.
type Options struct {
	// Dirs are directories whose files are part of the snapshot, in addition to
	// /run and /var/lib/cni. They need not exist.
	Dirs []string

	// Persistent makes Diff ignore added objects that all attachments share and
	// that may stay on a host after the first use of a network: a bridge
	// without ports, with its addresses and routes; the shared chains and rules
	// of the reference plugins and of allocnet's tables; chains that accept
	// everything; empty sets and tables; enabled forwarding; directories, lock
	// files and host-local's last reserved addresses.
	Persistent bool

	// Tracked, if set, selects the addresses whose tracked connections are part
	// of the snapshot. If it is nil, no connections are.
	Tracked func(netip.Addr) bool

	// Ignore, if set, selects more added lines that Diff ignores. It receives
	// whole lines.
	Ignore func(line string) bool
}

// A Snapshot is the state of a host at one time. The zero value is an empty host.
type Snapshot struct {
	lines    []line // sorted
	switched bool   // see switchesFile
}

// line describes one object.
type line struct {
	text       string
	persistent bool // Diff ignores it if it was added
}

// Take takes a snapshot of the network namespace and the mounts of the calling
// thread. It needs root's capabilities in both.
func Take(opts Options) (Snapshot, error) {
	c := &collector{opts: opts}
	for _, part := range []struct {
		name    string
		collect func() error
	}{
		{"links and routes", c.network},
		{"nftables", c.nftables},
		{"files", c.files},
		{"mounts", c.mounts},
		{"sysctls", c.sysctls},
		{"tracked connections", c.conntrack},
	} {
		if err := part.collect(); err != nil {
			return Snapshot{}, fmt.Errorf("take snapshot of %s: %w", part.name, err)
		}
	}
	sort.SliceStable(c.lines, func(i, j int) bool { return c.lines[i].text < c.lines[j].text })
	return Snapshot{lines: c.lines, switched: c.switched}, nil
}

// String returns the sorted lines of the snapshot.
func (s Snapshot) String() string {
	var b strings.Builder
	for _, l := range s.lines {
		b.WriteString(l.text + "\n")
	}
	return b.String()
}

// Diff returns the lines that differ: a minus sign precedes a removed line, a
// plus sign an added one. It returns "" if there are none. The Options of after
// decide which added lines are ignored.
func Diff(before, after Snapshot) string {
	var b strings.Builder
	old, now := before.lines, after.lines
	if before.switched || after.switched {
		old, now = slices.DeleteFunc(slices.Clone(old), forwarding), slices.DeleteFunc(slices.Clone(now), forwarding)
	}
	for len(old) > 0 || len(now) > 0 {
		switch {
		case len(now) == 0 || len(old) > 0 && old[0].text < now[0].text:
			b.WriteString("-" + old[0].text + "\n")
			old = old[1:]
		case len(old) == 0 || now[0].text < old[0].text:
			if !now[0].persistent {
				b.WriteString("+" + now[0].text + "\n")
			}
			now = now[1:]
		default:
			old, now = old[1:], now[1:]
		}
	}
	return b.String()
}

// collector gathers the lines of a snapshot.
type collector struct {
	opts     Options
	lines    []line
	switched bool // see switchesFile
}

// add adds a line of the non-empty words. shared says that the object may stay
// on a host: see Options.Persistent.
func (c *collector) add(shared bool, words ...string) {
	var present []string
	for _, word := range words {
		if word != "" {
			present = append(present, word)
		}
	}
	text := strings.Join(present, " ")
	persistent := shared && c.opts.Persistent || c.opts.Ignore != nil && c.opts.Ignore(text)
	c.lines = append(c.lines, line{text: text, persistent: persistent})
}

// labelled returns "label value", or "" when there is no value.
func labelled(label, value string) string {
	if value == "" {
		return ""
	}
	return label + " " + value
}
