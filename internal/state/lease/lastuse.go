package lease

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"net/netip"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// The file <data directory>/.allocnet/.released has the times at which addresses were released last, in any network, as
// several may have the same addresses on one bridge: a number of seconds since 1970 in each place, 0 for never. The
// addresses of a range of up to 65536 have places of their own; those of different ranges may share some. The lock file
// of a network's directory, which host-local leaves empty, has the time until which another program may have released
// any of its addresses.

const (
	placeSize = 4
	// familyPlaces is the number of places of the addresses of one family.
	familyPlaces = 1 << 16
	// formerly is the time of releases by a reboot.
	formerly = 1
)

// placeOf returns the offset of the place of an address: that of its last 16 bits, moved by a hash of the others.
func placeOf(addr netip.Addr) int64 {
	const last = 2
	bytes := addr.AsSlice()
	prefix := fnv.New32a()
	prefix.Write(bytes[:len(bytes)-last])
	place := int64(binary.BigEndian.Uint16(bytes[len(bytes)-last:]) + uint16(prefix.Sum32()))
	if addr.Is6() {
		place += familyPlaces
	}
	return place * placeSize
}

func (s *Store) releasedPath() string { return filepath.Dir(s.links) + "/.released" }

// noteReleases stores that addresses are released now.
func (x *index) noteReleases(addrs ...netip.Addr) {
	if !x.noteAll(addrs, x.seconds()) {
		x.exact, x.known = false, false // the next operation takes the directory for one that another program has changed
	}
}

// noteAll stores a time for addresses. It reports whether the file could be written.
func (s *Store) noteAll(addrs []netip.Addr, seconds uint32) bool {
	if len(addrs) == 0 {
		return true
	}
	fd, err := openFile(s.releasedPath(), unix.O_WRONLY|unix.O_CREAT)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	written := true
	for _, addr := range addrs {
		written = note(fd, placeOf(addr), seconds) && written
	}
	return written
}

// noteUnknown stores that any address may have been released until now. It reports whether the file could be written.
func (x *index) noteUnknown() bool { return note(x.lock.fd, 0, x.seconds()) }

func note(fd int, at int64, seconds uint32) bool {
	n, err := unix.Pwrite(fd, binary.LittleEndian.AppendUint32(nil, seconds), at)
	return err == nil && n == placeSize
}

// storeLastUses stores what the requests ask for about the addresses that they have got.
func (x *index) storeLastUses(requests []Request, addrs []netip.Addr) {
	fd := -1
	for i, r := range requests {
		if r.LastUse == nil {
			continue
		}
		if fd < 0 {
			var err error
			fd, err = openFile(x.releasedPath(), unix.O_RDONLY)
			x.known = x.known && (err == nil || errors.Is(err, unix.ENOENT))
			if err == nil {
				defer unix.Close(fd)
			}
		}
		*r.LastUse = x.lastUse(fd, addrs[i])
	}
}

// lastUse returns the value of Request.LastUse. fd is the file of the releases; -1 if there is none.
func (x *index) lastUse(fd int, addr netip.Addr) time.Time {
	last := x.noted(x.lock.fd, 0)
	if fd >= 0 {
		last = max(last, x.noted(fd, placeOf(addr)))
	}
	switch {
	case !x.known:
		last = x.seconds()
	case last == 0:
		return time.Time{}
	}
	return time.Unix(int64(last), 0)
}

// noted returns the time of a place; the present if it cannot be read.
func (s *Store) noted(fd int, at int64) uint32 {
	var b [placeSize]byte
	n, err := unix.Pread(fd, b[:], at)
	if err != nil || n > 0 && n < placeSize {
		return s.seconds()
	}
	return binary.LittleEndian.Uint32(b[:])
}

// seconds returns the present.
func (s *Store) seconds() uint32 {
	now := time.Now
	if s.now != nil {
		now = s.now
	}
	return uint32(now().Unix())
}
