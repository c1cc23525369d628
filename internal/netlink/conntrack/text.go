package conntrack

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// A read of the entries' text returns at most a page, and ends before a line that does not fit. The next read
// counts lines from the beginning, so it can miss some if entries vanish meanwhile. A text that leaves room for
// a longer line than there are is therefore complete.
const (
	longestLine  = 1024
	shortestLine = 100
)

// read calls use with the entries of a family, which may lack keys and status. If there are few, it reads their
// text, because a list takes the kernel many times as long.
func (c *Conn) read(ctx context.Context, family uint8, use func(*entry)) error {
	entries, complete := c.fromText(family)
	if !complete {
		return c.each(ctx, filter{family: family}, use)
	}
	for i := range entries {
		use(&entries[i])
	}
	return nil
}

// deletable calls use with the entries of a family that a filter may select, which have keys.
func (c *Conn) deletable(ctx context.Context, f filter, use func(*entry)) error {
	entries, complete := c.fromText(f.family)
	if !complete || slices.ContainsFunc(entries, func(e entry) bool { return len(e.key) == 0 }) {
		return c.each(ctx, f, use)
	}
	for i := range entries {
		use(&entries[i])
	}
	return nil
}

// lacks reports whether the text shows that no entry of a family matches.
func (c *Conn) lacks(family uint8, match func(*entry) bool) bool {
	entries, complete := c.fromText(family)
	return complete && !slices.ContainsFunc(entries, func(e entry) bool { return match(&e) })
}

// fromText returns the entries of a family according to their text. complete is false if some may be missing.
func (c *Conn) fromText(family uint8) (entries []entry, complete bool) {
	page := os.Getpagesize()
	if c.noText.Load() || c.count() > page/shortestLine {
		return nil, false
	}
	file, err := os.Open(textPath)
	if err != nil {
		return nil, false
	}
	defer file.Close()
	text := make([]byte, page)
	n, err := file.Read(text)
	if n > page-longestLine || err != nil && err != io.EOF {
		return nil, false
	}
	for line := range bytes.Lines(text[:n]) {
		var e entry
		of, ok := e.parse(line)
		if !ok {
			return nil, false
		}
		if of == family {
			e.setKey()
			entries = append(entries, e)
		}
	}
	return entries, true
}

// parse reads an entry from its line:
//
//	ipv4     2 udp      17 29 src=192.0.2.1 dst=192.0.2.2 sport=1 dport=53 src=10.0.0.5 dst=192.0.2.1 sport=53 dport=1 mark=0 use=2
func (e *entry) parse(line []byte) (family uint8, ok bool) {
	words := bytes.Fields(line)
	if len(words) < 4 {
		return 0, false
	}
	protocol, err := strconv.ParseUint(string(words[3]), 10, 8)
	if err != nil || protocol == unix.IPPROTO_GRE { // its ports have other names
		return 0, false
	}
	direction := &e.answers
	for _, word := range words[4:] {
		name, value, _ := bytes.Cut(word, []byte("="))
		if string(name) == "src" { // the first word of each direction
			if direction = &e.tuple; e.source.IsValid() {
				direction = &e.answers
			}
			direction.protocol = uint8(protocol)
		}
		if err := e.parseWord(direction, string(name), string(value)); err != nil {
			return 0, false
		}
	}
	families := map[string]uint8{"ipv4": unix.AF_INET, "ipv6": unix.AF_INET6}
	family, ok = families[string(words[0])]
	return family, ok && e.source.IsValid() && e.answers.source.IsValid()
}

// parseWord reads a field of a direction, or of the entry.
func (e *entry) parseWord(t *tuple, name, value string) (err error) {
	number := func(bits int) (n uint64) {
		n, err = strconv.ParseUint(value, 10, bits)
		return n
	}
	switch name {
	case "src":
		t.source, err = netip.ParseAddr(value)
	case "dst":
		t.destination, err = netip.ParseAddr(value)
	case "sport":
		t.sourcePort = uint16(number(16))
	case "dport":
		t.port = uint16(number(16))
	case "type":
		t.icmpType = uint8(number(8))
	case "code":
		t.icmpCode = uint8(number(8))
	case "id":
		t.icmpID = uint16(number(16))
	case "zone", "zone-orig", "zone-reply":
		if number(16) != 0 && err == nil {
			err = errors.ErrUnsupported // the key would need it
		}
	case "mark":
		e.mark = uint32(number(32))
	}
	return err
}

// setKey sets the key of an entry that has none, if it is of a usual protocol. The text has no IDs, so a deletion
// can hit a later connection with the same addresses and ports: its next packet makes a new entry.
func (e *entry) setKey() {
	var r sock.Requests
	tuple := r.Nest(ctaTupleOrig)
	ip := r.Nest(ctaTupleIP)
	from, to := uint16(ctaIPv4Src), uint16(ctaIPv4Dst)
	if !e.source.Is4() {
		from, to = ctaIPv6Src, ctaIPv6Dst
	}
	r.Attribute(from, e.source.AsSlice())
	r.Attribute(to, e.destination.AsSlice())
	r.End(ip)
	proto := r.Nest(ctaTupleProto)
	r.Uint8(ctaProtoNum, e.protocol)
	switch e.protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
		r.Attribute(ctaProtoSrcPort, binary.BigEndian.AppendUint16(nil, e.sourcePort))
		r.Attribute(ctaProtoDstPort, binary.BigEndian.AppendUint16(nil, e.port))
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		kind := uint16(ctaProtoICMPType)
		if e.protocol == unix.IPPROTO_ICMPV6 {
			kind = ctaProtoICMPv6Type
		}
		r.Attribute(kind-1, binary.BigEndian.AppendUint16(nil, e.icmpID))
		r.Uint8(kind, e.icmpType)
		r.Uint8(kind+1, e.icmpCode)
	default:
		return
	}
	r.End(proto)
	r.End(tuple)
	e.key = r.Data()
}
