package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// callsName is bareName with all system calls of a Setup from a pool.
const callsName = "bare take, all calls"

// bareCalls makes every system call that a Setup from a pool makes for its promises, without
// the work between them: the minimum of a take that takes locks, sees changes of the
// configuration and of the host, reserves the host port, and looks for listeners and for
// clients from before. It compares nothing.
type bareCalls struct {
	*bareTaker
	lock    int           // descriptor of a file whose byte ranges are the locks
	records map[*slot]int // descriptors of the records, which a slot has open
	monitor int           // netlink socket without notifications
}

func newBareCalls(t *bareTaker) (*bareCalls, error) {
	other := *t
	other.dir = filepath.Join(workDir, "calls")
	c := &bareCalls{bareTaker: &other, records: map[*slot]int{}}
	err := os.MkdirAll(other.dir, 0o755)
	if err == nil {
		c.lock, err = unix.Open(c.file("lock"), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	}
	if err == nil {
		c.monitor, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	}
	other.calls = c
	return c, err
}

func (c *bareCalls) close() error { return errors.Join(unix.Close(c.lock), unix.Close(c.monitor)) }

func (c *bareCalls) file(name string) string { return filepath.Join(c.dir, name) }

// ready makes the files that a slot has.
func (c *bareCalls) ready(s *slot) (err error) {
	c.records[s], err = unix.Open(c.record(s), unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC, 0)
	return errors.Join(err, os.Symlink("*", c.file("namespace-"+s.id)), os.WriteFile(c.file("note-"+s.id), make([]byte, 100), 0o600))
}

// clear removes the files that a take leaves, except for those of bareTaker.
func (c *bareCalls) clear(s *slot) error {
	return errors.Join(os.RemoveAll(c.file(fmt.Sprint("port-", s.hostPort()))), os.Remove(c.file("namespace-"+s.id+".taken")), os.Remove(c.file("note-"+s.id+".taken")))
}

// bind makes the calls in the order of a take.
func (c *bareCalls) bind(sockets *baselineSockets, s *slot, ns *os.File) error {
	record, fd := c.record(s), c.records[s]
	// The lock of the allocation; no record, no namespace, the same configuration.
	c.stat(c.dir, c.file("lock"))
	c.setLock(unix.F_WRLCK, 1, 1)
	c.stat(c.file("none"), c.path(s), confDir, c.file("lock"), c.file("none"))
	err := errors.Join(c.probe(unix.SOCK_STREAM, s.hostPort()), c.probe(unix.SOCK_DGRAM, s.hostPort()))
	// The lock of the network, and that of the reservations.
	c.stat(c.file("lock"))
	c.setLock(unix.F_RDLCK, 10, 2)
	c.setLock(unix.F_UNLCK, 10, 1)
	c.stat(c.file("lock"))
	c.setLock(unix.F_WRLCK, 2, 1)
	c.stat(c.file("lock"))
	_, _ = unix.Open(c.file("block"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) // there is none
	err = errors.Join(err, c.reserve(s), write(fd, 600), unix.Rename(record, record+".taken"))
	c.setLock(unix.F_UNLCK, 2, 1)
	err = errors.Join(err, c.note(s), c.mount(s, ns))
	for range 2 {
		_, _, _ = unix.Recvfrom(c.monitor, make([]byte, 16), unix.MSG_DONTWAIT)
	}
	before, ports := c.parts(s)
	err = errors.Join(err, sockets.change(unix.NFT_MSG_NEWSETELEM, ports), c.lookUp(sockets, before, ports))
	var stat unix.Stat_t
	err = errors.Join(err, unix.Fstat(fd, &stat), write(fd, 340), unix.Close(fd))
	c.setLock(unix.F_UNLCK, 10, 2)
	c.setLock(unix.F_UNLCK, 1, 1)
	return err
}

func (c *bareCalls) stat(paths ...string) {
	var stat unix.Stat_t
	for _, path := range paths {
		_ = unix.Lstat(path, &stat)
	}
}

func (c *bareCalls) setLock(kind int16, offset, n int64) {
	_ = unix.FcntlFlock(uintptr(c.lock), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: offset, Len: n})
}

// probe binds a host port to see that no process of the host listens on it.
func (c *bareCalls) probe(kind int, port uint16) error {
	fd, err := unix.Socket(unix.AF_INET6, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 1), unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0))
	if kind == unix.SOCK_STREAM {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	}
	return errors.Join(err, unix.Bind(fd, &unix.SockaddrInet6{Port: int(port)}), unix.Close(fd))
}

// reserve reserves the host port, and gives the namespace's reservation to the allocation.
func (c *bareCalls) reserve(s *slot) error {
	port := c.file(fmt.Sprint("port-", s.hostPort()))
	return errors.Join(unix.Mkdir(port, 0o700), unix.Symlink("tcp/,udp/", filepath.Join(port, s.id)),
		unix.Rename(c.file("namespace-"+s.id), c.file("namespace-"+s.id+".taken")))
}

// note gives the note about the namespace to the allocation.
func (c *bareCalls) note(s *slot) error {
	return unix.Rename(c.file("note-"+s.id), c.file("note-"+s.id+".taken"))
}

// lookUp looks three elements up: clients from before.
func (c *bareCalls) lookUp(sockets *baselineSockets, before, ports []elements) error {
	var messages []*message
	for _, e := range []elements{before[0], before[1], ports[1]} {
		messages = append(messages, newMessage(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETSETELEM, 0, []byte{e.family, unix.NFNETLINK_V0, 0, 0}))
		e.fill(messages[len(messages)-1])
	}
	return sockets.rules.exchange(messages, messages[2], nil)
}

func write(fd, n int) error {
	_, err := unix.Write(fd, make([]byte, n))
	return err
}
