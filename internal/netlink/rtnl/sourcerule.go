package rtnl

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/retry"
)

// A sandbox with a default route over each of two links sends by the one with the lower priority,
// also what it answers from the address of the other link. A source rule, "from ADDRESS lookup
// TABLE" as ip rule shows it, makes answers from an address leave over its link: the table has
// the routes of that link. The kernel deletes these routes together with the link, but not the rule.

// fallback is larger than the priorities that anyone gives to a route, and than the numbers that
// anyone gives to a table. The kernel uses the route with the smallest priority; by default, that
// of IPv4 routes is 0, and of IPv6 routes 1024.
const fallback = 1 << 30

// Fallback returns the number for a link with which its routes have a priority that keeps those of
// other links to the same destination in use. It differs from those of other links: of equal IPv4
// routes the kernel uses the last one, and equal IPv6 routes it joins to one over all links. It is
// also the number of the table of the link's source rules.
func Fallback(index int) int { return fallback + index }

// IsFallback reports whether a priority, or the number of a table, is one of Fallback.
func IsFallback(number int) bool { return number > fallback && number < 2*fallback }

// sourceRulePriority is that of all source rules. The rule for VRFs comes before them (1000), and
// the one for the main table after them (32766).
const sourceRulePriority = 30000

// AddSourceRule adds the rule that makes answers from an address leave over the link with an
// index, unless it exists.
func (b *Batch) AddSourceRule(from net.IP, index int) {
	r := b.beginExcused("add rule from "+from.String(), unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, unix.EEXIST)
	putSourceRule(r, from, Fallback(index))
}

// putSourceRule appends a source rule. Its header, struct fib_rule_hdr, has the layout of that of
// a route.
func putSourceRule(r *sock.Requests, from net.IP, table int) {
	family, ip := uint8(unix.AF_INET6), from.To16()
	if v4 := from.To4(); v4 != nil {
		family, ip = unix.AF_INET, v4
	}
	putRoute(r, &unix.RtMsg{Family: family, Src_len: uint8(8 * len(ip)), Type: unix.FR_ACT_TO_TBL})
	r.Attribute(unix.FRA_SRC, ip)
	r.Uint32(unix.FRA_PRIORITY, sourceRulePriority)
	r.Uint32(unix.FRA_TABLE, uint32(table))
}

// sourceRule is a source rule of a sandbox.
type sourceRule struct {
	from  net.IP
	table int
}

// SourceRules returns the addresses from which answers leave over the link with an index by a
// source rule.
func (s *Sandbox) SourceRules(index int) ([]net.IP, error) {
	all, err := s.sourceRules()
	var from []net.IP
	for _, one := range all {
		if one.table == Fallback(index) {
			from = append(from, one.from)
		}
	}
	return from, err
}

// DelOrphanedSourceRules deletes the source rules whose link does not exist.
func (s *Sandbox) DelOrphanedSourceRules() error {
	all, err := s.sourceRules()
	if err != nil {
		return err
	}
	var b Batch
	for _, one := range all {
		_, err := s.LinkByIndex(one.table - fallback)
		switch {
		case IsNotFound(err):
			r := b.beginExcused("delete rule from "+one.from.String(), unix.RTM_DELRULE, 0, unix.ENOENT)
			putSourceRule(r, one.from, one.table)
		case err != nil:
			return err
		}
	}
	return s.Apply(&b)
}

// sourceRules returns the source rules of both families.
func (s *Sandbox) sourceRules() ([]sourceRule, error) {
	all, err := retry.List(func() (list []sourceRule, err error) {
		err = dump(s.conn, func(r *sock.Requests) {
			r.Begin("", unix.RTM_GETRULE, unix.NLM_F_DUMP)
			putRoute(r, &unix.RtMsg{Family: unix.AF_UNSPEC})
		}, func(payload []byte) error {
			if one, ok := parseSourceRule(payload); ok {
				list = append(list, one)
			}
			return nil
		})
		return list, err
	})
	if err != nil {
		return nil, fmt.Errorf("list the rules of the sandbox: %w", err)
	}
	return all, nil
}

// parseSourceRule reads a rule. ok reports that it is a source rule.
func parseSourceRule(payload []byte) (one sourceRule, ok bool) {
	const srcLenAt, actionAt = 2, 7 // in struct fib_rule_hdr
	if len(payload) < unix.SizeofRtMsg || payload[actionAt] != unix.FR_ACT_TO_TBL {
		return one, false
	}
	priority := uint32(0)
	sock.EachAttribute(payload[unix.SizeofRtMsg:], func(kind uint16, value []byte) {
		switch kind {
		case unix.FRA_SRC:
			one.from = append(net.IP(nil), value...)
		case unix.FRA_PRIORITY:
			priority = sock.Uint32(value)
		case unix.FRA_TABLE:
			one.table = int(sock.Uint32(value))
		}
	})
	return one, priority == sourceRulePriority && IsFallback(one.table) && len(one.from) > 0 && int(payload[srcLenAt]) == 8*len(one.from)
}
