package bench

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"text/template"

	"golang.org/x/sys/unix"
)

// baselineTable is the name of the baseline's nftables table in each family.
const baselineTable = "baseline"

// ruleset is the constant part of the tables. Allocations add elements to a map
// and three sets. There is no verdict map, because the kernel validates all its
// elements again with each element that jumps, which would be slower than
// necessary.
var ruleset = template.Must(template.New("").Parse(`
add table {{.Family}} {{.Table}}
delete table {{.Family}} {{.Table}}
table {{.Family}} {{.Table}} {
	map ports { type inet_proto . inet_service : {{.Type}} . inet_service; }
	set published { type {{.Type}}; }
	set masqueraded { type {{.Type}}; }
	set open { type {{.Type}}; }
	chain hostports { dnat to meta l4proto . th dport map @ports; }
	chain hairpin { {{.Header}} saddr {{.Loopback}} masquerade; {{.Header}} saddr @masqueraded masquerade; }
	chain prerouting { type nat hook prerouting priority dstnat; fib daddr type local jump hostports; }
	chain output { type nat hook output priority -100; fib daddr type local jump hostports; }
	chain postrouting {
		type nat hook postrouting priority srcnat;
		ct status dnat {{.Header}} daddr @published jump hairpin;
		{{.Header}} saddr @masqueraded {{.Header}} daddr != {{.Multicast}} {{.Header}} daddr != {{.Subnet}} masquerade;
	}
	chain forward {
		type filter hook forward priority filter;
		{{.Header}} saddr @open accept;
		{{.Header}} daddr @open ct state established,related accept;
		{{.Header}} daddr @open ct status dnat accept;
	}
}
`))

// makeTables creates the tables of a network, without elements.
func makeTables(ctx context.Context, n *network) error {
	var text bytes.Buffer
	for _, f := range n.families() {
		args := map[string]string{
			"Table": baselineTable, "Subnet": f.subnet.String(), "Family": "ip", "Header": "ip", "Type": "ipv4_addr",
			"Loopback": "127.0.0.0/8", "Multicast": "224.0.0.0/4",
		}
		if f.subnet.Addr().Is6() {
			args["Family"], args["Header"], args["Type"] = "ip6", "ip6", "ipv6_addr"
			args["Loopback"], args["Multicast"] = "::1", "ff00::/8"
		}
		if err := ruleset.Execute(&text, args); err != nil {
			return err
		}
	}
	return nft(ctx, text.String())
}

// dropTables removes the tables.
func dropTables(ctx context.Context, n *network) error {
	var text string
	for _, f := range n.families() {
		text += fmt.Sprintf("delete table %s %s\n", nftFamily(f.subnet.Addr()), baselineTable)
	}
	return nft(ctx, text)
}

// nft runs commands of the program nft, which must be installed.
func nft(ctx context.Context, commands string) error {
	c := exec.CommandContext(ctx, "nft", "-f", "-")
	c.Stdin = strings.NewReader(commands)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("run nft: %w: %s", err, out)
	}
	return nil
}

func nftFamily(a netip.Addr) string {
	if a.Is4() {
		return "ip"
	}
	return "ip6"
}

// element is one element of a set or map.
type element struct {
	key, value []byte // value is nil in a set
}

// elements is a change of the elements of one set.
type elements struct {
	family byte
	set    string
	all    []element
}

// allocationElements returns the elements of one allocation, per family.
func allocationElements(a netip.Addr, hostPort, port uint16) []elements {
	f, ip := byte(unix.NFPROTO_IPV4), a.AsSlice()
	if a.Is6() {
		f = unix.NFPROTO_IPV6
	}
	to := append(a.AsSlice(), portField(port)...)
	return []elements{
		{f, "ports", []element{
			{key: portKey(unix.IPPROTO_TCP, hostPort), value: to},
			{key: portKey(unix.IPPROTO_UDP, hostPort), value: to},
		}},
		{f, "published", []element{{key: ip}}},
		{f, "masqueraded", []element{{key: ip}}},
		{f, "open", []element{{key: ip}}},
	}
}

// Every part of a concatenation is padded to registers of 4 bytes.

func portField(port uint16) []byte { return []byte{byte(port >> 8), byte(port), 0, 0} }

func portKey(protocol byte, port uint16) []byte {
	return append([]byte{protocol, 0, 0, 0}, portField(port)...)
}

// transaction returns an nftables transaction of changes, and its message that
// is to be acknowledged.
func transaction(kind int, changes []elements) (messages []*message, last *message) {
	messages = append(messages, newMessage(unix.NFNL_MSG_BATCH_BEGIN, 0, batchHeader))
	for i := range changes {
		messages = append(messages, changes[i].message(kind))
	}
	last = messages[len(messages)-1]
	last.flag(unix.NLM_F_ACK)
	return append(messages, newMessage(unix.NFNL_MSG_BATCH_END, 0, batchHeader)), last
}

// batchHeader is a struct nfgenmsg that names the subsystem.
var batchHeader = []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}

func (e *elements) message(kind int) *message {
	flags := 0
	if kind == unix.NFT_MSG_NEWSETELEM {
		flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	}
	m := newMessage(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, []byte{e.family, unix.NFNETLINK_V0, 0, 0})
	e.fill(m)
	return m
}

// fill appends the elements to a message.
func (e *elements) fill(m *message) {
	m.text(unix.NFTA_SET_ELEM_LIST_TABLE, baselineTable)
	m.text(unix.NFTA_SET_ELEM_LIST_SET, e.set)
	m.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
		for _, one := range e.all {
			m.nest(unix.NFTA_LIST_ELEM, func() { one.fill(m) })
		}
	})
}

func (e *element) fill(m *message) {
	m.nest(unix.NFTA_SET_ELEM_KEY, func() { m.attr(unix.NFTA_DATA_VALUE, e.key...) })
	if e.value != nil {
		m.nest(unix.NFTA_SET_ELEM_DATA, func() { m.attr(unix.NFTA_DATA_VALUE, e.value...) })
	}
}
