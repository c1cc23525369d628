package netfilter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/retry"
)

// legacyChain is a chain that an operator or a plugin made with the legacy iptables,
// with the single addresses that its rules match.
type legacyChain struct {
	name      string
	addresses []netip.Addr
}

// The kernel's interface to the legacy tables: linux/netfilter_ipv4/ip_tables.h
// and linux/netfilter_ipv6/ip6_tables.h.
const (
	getInfo    = 64 // IPT_SO_GET_INFO
	getEntries = 65 // IPT_SO_GET_ENTRIES
	nameLength = 32

	underflowAt  = nameLength + 6*4 // of ipt_getinfo: offsets of the policies of the hooks
	sizeAt       = nameLength + 12*4
	infoLength   = sizeAt + 4
	entriesStart = nameLength + 8 // of ipt_get_entries, aligned

	errorTarget = "ERROR" // the target of entries that begin a chain or end the table
)

// layout contains the offsets of the fields in the entries of a family.
type layout struct {
	level, address    int // level of the socket options; length of an address
	target, next, end int // offsets in ipt_entry or ip6t_entry
}

var layouts = map[bool]layout{
	false: {level: unix.SOL_IP, address: 4, target: 88, next: 90, end: 112},
	true:  {level: unix.SOL_IPV6, address: 16, target: 140, next: 142, end: 168},
}

// legacy reads the chains that were made with the legacy iptables.
func (t Table) legacy() ([]legacyChain, error) {
	table, err := t.legacyTable()
	if err != nil || table == nil {
		return nil, err
	}
	return layouts[t.IPv6].chains(table.entries)
}

// legacyTable is a table as the kernel returns it.
type legacyTable struct{ info, entries []byte }

// legacyTable reads the table; nil if it is not in use. It does not read a table that
// is not in use, because reading makes the kernel create it.
func (t Table) legacyTable() (*legacyTable, error) {
	file := "/proc/thread-self/net/ip_tables_names"
	if t.IPv6 {
		file = "/proc/thread-self/net/ip6_tables_names"
	}
	names, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !slices.Contains(strings.Fields(string(names)), t.Name) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	table, err := t.readLegacy()
	if err != nil {
		return nil, fmt.Errorf("read rules of the legacy iptables: %w", err)
	}
	return table, nil
}

func (t Table) readLegacy() (*legacyTable, error) {
	l := layouts[t.IPv6]
	domain := unix.AF_INET
	if t.IPv6 {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	const attempts = 10
	for range attempts { // again if another program changes the table in between
		info := make([]byte, infoLength)
		copy(info, t.Name)
		if err := getsockopt(fd, l.level, getInfo, info); err != nil {
			return nil, err
		}
		size := binary.NativeEndian.Uint32(info[sizeAt:])
		entries := make([]byte, entriesStart+size)
		copy(entries, t.Name)
		binary.NativeEndian.PutUint32(entries[nameLength:], size)
		err := getsockopt(fd, l.level, getEntries, entries)
		if err == nil {
			return &legacyTable{info: info, entries: entries[entriesStart:]}, nil
		}
		if err != unix.EAGAIN {
			return nil, err
		}
	}
	return nil, retry.ErrChanged
}

func getsockopt(fd, level, name int, value []byte) error {
	size := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

var errEntries = errors.New("the kernel's table is not understood")

// each calls use with the entries of a table and the offset of the target of each.
func (l layout) each(entries []byte, use func(entry []byte, target int)) error {
	for len(entries) > 0 {
		if len(entries) < l.end {
			return errEntries
		}
		target := int(binary.NativeEndian.Uint16(entries[l.target:]))
		next := int(binary.NativeEndian.Uint16(entries[l.next:]))
		if next < l.end || next > len(entries) || target < l.end || target > next {
			return errEntries
		}
		use(entries[:next], target)
		entries = entries[next:]
	}
	return nil
}

// chains reads the chains from the entries of a table. The entries of the built-in
// chains come first; no entry with a name begins those chains.
func (l layout) chains(entries []byte) ([]legacyChain, error) {
	var chains []legacyChain
	err := l.each(entries, func(entry []byte, target int) {
		if name := begins(entry[target:]); name != "" {
			chains = append(chains, legacyChain{name: name})
		} else if n := len(chains); n > 0 {
			chains[n-1].addresses = append(chains[n-1].addresses, l.addresses(entry)...)
		}
	})
	if err != nil {
		return nil, err
	}
	if n := len(chains); n > 0 && chains[n-1].name == errorTarget {
		chains = chains[:n-1] // the entry that ends the table
	}
	return chains, nil
}

// comments reads the comments of all rules of a table.
func (l layout) comments(entries []byte) (comments []string, err error) {
	const name, revision, info = 2, 31, 32 // struct xt_entry_match
	err = l.each(entries, func(entry []byte, target int) {
		for matches := entry[l.end:target]; len(matches) >= info; {
			size := int(binary.NativeEndian.Uint16(matches))
			if size < info || size > len(matches) {
				return
			}
			if text(matches[name:revision]) == matchComment {
				comments = append(comments, text(matches[info:size]))
			}
			matches = matches[size:]
		}
	})
	return comments, err
}

// drops reports whether the policy of a hook is to drop.
func (l layout) drops(table *legacyTable, hook int) (bool, error) {
	const verdict, drop = 32, -1 // struct xt_standard_target; -NF_DROP - 1
	at := uint64(binary.NativeEndian.Uint32(table.info[underflowAt+4*hook:]))
	if at+uint64(l.end) > uint64(len(table.entries)) {
		return false, errEntries
	}
	entry := table.entries[at:]
	at = uint64(binary.NativeEndian.Uint16(entry[l.target:])) + verdict
	if at+4 > uint64(len(entry)) {
		return false, errEntries
	}
	return int32(binary.NativeEndian.Uint32(entry[at:])) == drop, nil
}

// begins returns the name of the chain that an entry with the target begins, if it
// begins one.
func begins(target []byte) string {
	const name, chain = 2, 32 // struct xt_error_target
	if len(target) < chain || text(target[name:chain-1]) != errorTarget {
		return ""
	}
	return text(target[chain:])
}

func text(data []byte) string {
	before, _, _ := bytes.Cut(data, []byte{0})
	return string(before)
}

// addresses returns the source and the destination that an entry matches, if they are
// single addresses.
func (l layout) addresses(entry []byte) []netip.Addr {
	var list []netip.Addr
	whole := bytes.Repeat([]byte{0xff}, l.address)
	for i := range 2 { // addresses first, then their masks
		mask := entry[(2+i)*l.address : (3+i)*l.address]
		if addr, ok := netip.AddrFromSlice(entry[i*l.address : (i+1)*l.address]); ok && bytes.Equal(mask, whole) {
			list = append(list, addr)
		}
	}
	return list
}
