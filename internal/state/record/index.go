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

// reservation is an object that can have only one owner: a network namespace, a
// host port, host ports of a block, or an interface of a container.
type reservation struct {
	key   string // name of its directory in the index
	value string // which protocols, addresses or ports of it
	ports []portmap.Mapping
}

const (
	// everything is the value that conflicts with all others.
	everything = "*"
	// maxValue is the maximum length of a value. A longer one becomes
	// everything.
	maxValue = 1000
)

// reservations returns those of a record: the network namespace, by its
// identity or in old records by its path, each host port, also of an update
// that has begun, and the container if it is not named as the allocation.
func (r *Record) reservations() []reservation {
	reservations := reservationsOf(r.Netns, r.reservedPorts())
	if r.Namespace != (sandbox.Identity{}) {
		reservations[0].key = fmt.Sprintf("netns-%d-%d", r.Namespace.Device, r.Namespace.Inode)
	}
	if r.ContainerID != "" && r.Slot == "" {
		reservations = append(reservations, containerReservation(r.ContainerID))
	}
	return reservations
}

// reservedPorts returns the host ports that a record may have reserved.
func (r *Record) reservedPorts() []portmap.Mapping {
	if r.Update != nil {
		return slices.Concat(r.Ports, r.Update.Ports)
	}
	return r.Ports
}

// containerReservation returns the reservation of the interfaces of a container.
func containerReservation(id string) reservation {
	return reservation{key: "container-" + id, value: everything}
}

// reservationsOf returns the reservations of a network namespace's path and of
// ports.
func reservationsOf(netns string, ports []portmap.Mapping) []reservation {
	reservations := []reservation{{key: netnsKey(netns), value: everything}}
	if len(ports) > maxSingle && countPorts(ports) > maxSingle {
		return append(reservations, blocksOf(ports)...)
	}
	at := map[int]int{}
	for _, m := range ports {
		i, ok := at[m.HostPort]
		if !ok {
			i = len(reservations)
			at[m.HostPort] = i
			reservations = append(reservations, reservation{key: singlePrefix + strconv.Itoa(m.HostPort)})
		}
		reservations[i].ports = append(reservations[i].ports, m)
	}
	for i := range reservations[1:] {
		reservations[i+1].value = valueOf(reservations[i+1].ports)
	}
	return reservations
}

func netnsKey(path string) string {
	h := fnv.New64a()
	h.Write([]byte(filepath.Clean(path)))
	return fmt.Sprintf("netns-%016x", h.Sum64())
}

// valueOf returns protocols and host IPs as a value: "tcp/,udp/192.0.2.1".
func valueOf(ports []portmap.Mapping) string {
	var parts []string
	for _, m := range ports {
		if strings.ContainsAny(m.Protocol+m.HostIP, "/,\x00") {
			return everything
		}
		parts = append(parts, m.Protocol+"/"+m.HostIP)
	}
	if value := strings.Join(parts, ","); len(value) <= maxValue {
		return value
	}
	return everything
}

// meets reports whether a reservation with that value may conflict with r.
func (c reservation) meets(value string) bool {
	if value == everything || len(c.ports) == 0 {
		return true
	}
	if spans, ok := parseSpans(value); ok {
		return slices.ContainsFunc(c.ports, func(m portmap.Mapping) bool { return spans.contain(m.HostPort) })
	}
	var taken []portmap.Mapping
	for _, p := range strings.Split(value, ",") {
		protocol, ip, ok := strings.Cut(p, "/")
		if !ok {
			return true
		}
		taken = append(taken, portmap.Mapping{HostPort: c.ports[0].HostPort, Protocol: protocol, HostIP: ip})
	}
	_, _, found := portmap.FindConflict(c.ports, taken)
	return found
}

// index is the directory of the reservations.
type index string

// complete is the path of the marker of an index with all records. completeBefore is
// the marker of older versions, whose index has no containers.
func (x index) complete() string       { return filepath.Join(string(x), "complete-3") }
func (x index) completeBefore() string { return filepath.Join(string(x), "complete-2") }

// isComplete reports whether the index has all records. If the marker of an older version exists, that
// version may have written records since.
func (x index) isComplete() bool {
	info, err := os.Lstat(x.complete())
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	_, err = os.Lstat(x.completeBefore())
	return errors.Is(err, fs.ErrNotExist)
}

func (x index) dir(key string) string      { return filepath.Join(string(x), key) }
func (x index) link(key, id string) string { return filepath.Join(string(x), key, id) }

// draft returns the path at which a reservation is written before it replaces
// an existing one.
func (x index) draft(id string) string { return filepath.Join(string(x), "."+id) }

// add adds a reservation of an allocation, unless it exists. It retries,
// because the process that completes the index may add the same reservation at
// the same time, and others remove empty directories.
func (x index) add(id string, c reservation) error {
	const enough = 10_000 // some tens of milliseconds
	var err error
	for range enough {
		err = unix.Symlink(c.value, x.link(c.key, id))
		if errors.Is(err, fs.ErrExist) {
			switch x.value(c.key, id) {
			case c.value, everything:
				return nil
			case "": // it was removed meanwhile
				continue
			}
			err = x.widen(id, c)
		}
		if errors.Is(err, fs.ErrNotExist) {
			if err := x.makeDir(c.key); err != nil {
				return fmt.Errorf("reserve %s for allocation %q: %w", c.key, id, fault(filepath.Dir(string(x)), err))
			}
		} else if !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("reserve %s for allocation %q: %w", c.key, id, fault(filepath.Dir(string(x)), err))
	}
	return nil
}

// widen replaces an existing reservation by one of everything: until the new
// record is written, the old one remains valid as well.
func (x index) widen(id string, c reservation) error {
	// All drafts are equal, so an existing one is used.
	if err := unix.Symlink(everything, x.draft(id)); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return rename(x.draft(id), x.link(c.key, id))
}

// makeDir makes the directory of a key, or that of the index if it is missing; then the caller tries
// again. It does not make both with MkdirAll, which fails if another process removes the first
// directory meanwhile.
func (x index) makeDir(name string) error {
	err := unix.Mkdir(x.dir(name), 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return os.MkdirAll(string(x), 0o700)
	}
	return err
}

// value returns the value of a reservation, or "" if it does not exist.
func (x index) value(key, id string) string {
	var text [maxValue + 1]byte
	n, err := unix.Readlink(x.link(key, id), text[:])
	switch {
	case err == nil:
		return string(text[:n])
	case errors.Is(err, fs.ErrNotExist):
		return ""
	}
	return everything // another program created an object that is not a link
}

// release removes a reservation.
func (x index) release(id string, c reservation) error {
	errs := []error{remove(x.link(c.key, id))}
	err := unix.Rmdir(x.dir(c.key))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		errs = append(errs, &fs.PathError{Op: "remove", Path: x.dir(c.key), Err: err})
	}
	return errors.Join(errs...)
}

// IsReserved reports whether an allocation has reserved a host port, of any protocol, or may
// have. Reserve alone decides. Ports of allocations with many of them are not found.
func (s *Store) IsReserved(port int) bool {
	_, err := os.Lstat(s.index.dir(singlePrefix + strconv.Itoa(port)))
	return err == nil
}

// all returns the keys of all reservations, including those that a crash left.
func (x index) all() []reservation {
	entries, _ := os.ReadDir(string(x)) // a missed entry only costs time
	var reservations []reservation
	for _, e := range entries {
		if e.IsDir() {
			reservations = append(reservations, reservation{key: e.Name()})
		}
	}
	return reservations
}

// holders returns the allocations whose reservations may conflict with c.
func (x index) holders(c reservation) ([]string, error) {
	// Do not follow a link to another directory.
	dir, err := os.OpenFile(x.dir(c.key), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for reservations: %w", fault(filepath.Dir(string(x)), err))
	}
	defer dir.Close()
	if err := statedir.CheckDir(int(dir.Fd()), dir.Name()); err != nil {
		return nil, fmt.Errorf("look for reservations: %w", fault(filepath.Dir(string(x)), err))
	}
	names, err := dir.Readdirnames(-1)
	if errors.Is(err, fs.ErrNotExist) { // it was removed meanwhile
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for reservations: %w", fault(filepath.Dir(string(x)), err))
	}
	slices.Sort(names)
	var ids []string
	for _, id := range names {
		if value := x.value(c.key, id); value != "" && c.meets(value) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}
