package record

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/state/statedir"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// A claim is what a record has of something that can have one owner only.
type claim struct {
	thing string // the name of its directory
	part  string // what of it, as text
	ports []portmap.Mapping
}

const (
	// everything is the part that meets all others.
	everything = "*"
	// longestPart is what is worth writing down.
	longestPart = 1000
)

// claims are those of a record: the network namespace, which is known by what it
// is, or in old records by its path, and each host port.
func (r *Record) claims() []claim {
	claims := claimsOf(r.Netns, r.Ports)
	if r.Namespace != (sandbox.Identity{}) {
		claims[0].thing = fmt.Sprintf("netns-%d-%d", r.Namespace.Device, r.Namespace.Inode)
	}
	return claims
}

// claimsOf are the claims of a network namespace's path and of ports.
func claimsOf(netns string, ports []portmap.Mapping) []claim {
	claims := []claim{{thing: netnsThing(netns), part: everything}}
	if len(ports) > mostSingle && countPorts(ports) > mostSingle {
		return append(claims, blocksOf(ports)...)
	}
	at := map[int]int{}
	for _, m := range ports {
		i, ok := at[m.HostPort]
		if !ok {
			i = len(claims)
			at[m.HostPort] = i
			claims = append(claims, claim{thing: singlePrefix + strconv.Itoa(m.HostPort)})
		}
		claims[i].ports = append(claims[i].ports, m)
	}
	for i := range claims[1:] {
		claims[i+1].part = partOf(claims[i+1].ports)
	}
	return claims
}

func netnsThing(path string) string {
	h := fnv.New64a()
	h.Write([]byte(filepath.Clean(path)))
	return fmt.Sprintf("netns-%016x", h.Sum64())
}

// partOf writes down protocols and host IPs: "tcp/,udp/192.0.2.1".
func partOf(ports []portmap.Mapping) string {
	var parts []string
	for _, m := range ports {
		if strings.ContainsAny(m.Protocol+m.HostIP, "/,\x00") {
			return everything
		}
		parts = append(parts, m.Protocol+"/"+m.HostIP)
	}
	if part := strings.Join(parts, ","); len(part) <= longestPart {
		return part
	}
	return everything
}

// meets reports whether somebody who has that part may be in the way of the claim.
func (c claim) meets(part string) bool {
	if part == everything || len(c.ports) == 0 {
		return true
	}
	if spans, ok := parseSpans(part); ok {
		return slices.ContainsFunc(c.ports, func(m portmap.Mapping) bool { return spans.contain(m.HostPort) })
	}
	var taken []portmap.Mapping
	for _, p := range strings.Split(part, ",") {
		protocol, ip, ok := strings.Cut(p, "/")
		if !ok {
			return true
		}
		taken = append(taken, portmap.Mapping{HostPort: c.ports[0].HostPort, Protocol: protocol, HostIP: ip})
	}
	_, _, found := portmap.FindConflict(c.ports, taken)
	return found
}

// index is the directory of the claims.
type index string

// complete is the mark of an index of all records; it has another name than that of
// an index without blocks.
func (x index) complete() string              { return filepath.Join(string(x), "complete-2") }
func (x index) completeBefore() string        { return filepath.Join(string(x), "complete") }
func (x index) thing(name string) string      { return filepath.Join(string(x), name) }
func (x index) claim(thing, id string) string { return filepath.Join(string(x), thing, id) }

// draft is where a claim is made before it replaces the one that is there.
func (x index) draft(id string) string { return filepath.Join(string(x), "."+id) }

// enter makes a claim of an allocation, unless it is there already. Who completes
// the index may do the same for the same allocation at the same time, and others
// remove directories that are empty: then it begins again.
func (x index) enter(id string, c claim) error {
	const enough = 10_000 // some tens of milliseconds
	var err error
	for range enough {
		err = unix.Symlink(c.part, x.claim(c.thing, id))
		if errors.Is(err, fs.ErrExist) {
			switch x.part(c.thing, id) {
			case c.part, everything:
				return nil
			case "": // it went meanwhile
				continue
			}
			err = x.widen(id, c)
		}
		if errors.Is(err, fs.ErrNotExist) {
			if err := x.makeThing(c.thing); err != nil {
				return fmt.Errorf("claim %s for allocation %q: %w", c.thing, id, fault(filepath.Dir(string(x)), err))
			}
		} else if !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("claim %s for allocation %q: %w", c.thing, id, fault(filepath.Dir(string(x)), err))
	}
	return nil
}

// widen turns a claim that is there already into one of everything, because until
// the new record is written the old one holds as well.
func (x index) widen(id string, c claim) error {
	// All drafts are the same: one that is there will do.
	if err := unix.Symlink(everything, x.draft(id)); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return rename(x.draft(id), x.claim(c.thing, id))
}

func (x index) makeThing(name string) error {
	err := unix.Mkdir(x.thing(name), 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return os.MkdirAll(x.thing(name), 0o700)
	}
	return err
}

// part is what a claim says, and empty if it is not there.
func (x index) part(thing, id string) string {
	var text [longestPart + 1]byte
	n, err := unix.Readlink(x.claim(thing, id), text[:])
	switch {
	case err == nil:
		return string(text[:n])
	case errors.Is(err, fs.ErrNotExist):
		return ""
	}
	return everything // something that is no link, and that somebody else put there
}

// leave gives a claim back.
func (x index) leave(id string, c claim) error {
	errs := []error{remove(x.claim(c.thing, id))}
	err := unix.Rmdir(x.thing(c.thing))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		errs = append(errs, &fs.PathError{Op: "remove", Path: x.thing(c.thing), Err: err})
	}
	return errors.Join(errs...)
}

// all are claims of all that anybody has claimed, or that a crash left claimed by
// nobody.
func (x index) all() []claim {
	entries, _ := os.ReadDir(string(x)) // what is missed costs time, nothing else
	var claims []claim
	for _, e := range entries {
		if e.IsDir() {
			claims = append(claims, claim{thing: e.Name()})
		}
	}
	return claims
}

// holders are the allocations that may be in the way of a claim.
func (x index) holders(c claim) ([]string, error) {
	// A link would lead to another directory.
	dir, err := os.OpenFile(x.thing(c.thing), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for claims: %w", fault(filepath.Dir(string(x)), err))
	}
	defer dir.Close()
	if err := statedir.CheckDir(int(dir.Fd()), dir.Name()); err != nil {
		return nil, fmt.Errorf("look for claims: %w", fault(filepath.Dir(string(x)), err))
	}
	names, err := dir.Readdirnames(-1)
	if errors.Is(err, fs.ErrNotExist) { // it went meanwhile
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for claims: %w", fault(filepath.Dir(string(x)), err))
	}
	slices.Sort(names)
	var ids []string
	for _, id := range names {
		if part := x.part(c.thing, id); part != "" && c.meets(part) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}
