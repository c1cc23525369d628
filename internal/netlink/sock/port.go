package sock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// The kernel names the socket whose request led to a notification by its port ID, which
// is unique for a protocol in a network namespace. The sockets of this process have port
// IDs from one block of numbers, so that the kernel can filter out the notifications of
// the process's own changes.

const (
	blockSize = 1 << 15
	// The kernel itself assigns port IDs that are process IDs, which are below
	// PID_MAX_LIMIT (1 << 22), or negative.
	firstBlock = 1 << 23
	pastBlocks = 1 << 31
)

// block returns the first port ID of this process's block.
var block = sync.OnceValue(claimBlock)

// claimBlock chooses a block at random, and marks it as taken by a Unix socket of an
// abstract name. Like port IDs, these names belong to the network namespace, and they
// disappear with the process.
func claimBlock() (first uint32) {
	const most = 16 // the kernel may have no room for the socket
	for range most {
		first = firstBlock + blockSize*rand.N(uint32((pastBlocks-firstBlock)/blockSize))
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("@allocnet/netlink/%d", first)}) == nil {
			return first // the socket stays open
		}
		unix.Close(fd)
	}
	return first
}

// sockets counts the port IDs that were tried.
var sockets atomic.Uint32

// mostTaken is the number of port IDs in use after which bind leaves the choice to the kernel. This
// process has fewer sockets at a time.
const mostTaken = 256

// bind gives a socket a port ID of this process's block. Every user may take these, which
// needs no right. Then the kernel chooses one, and what the socket changes is notified like the
// changes of other programs: it is compared once more.
func bind(fd int) error {
	for range mostTaken {
		port := block() + sockets.Add(1)%blockSize
		err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port})
		if !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
	}
	return unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// foreign is the beginning of a socket filter: it drops the notifications of this
// process's own changes.
func foreign() []unix.SockFilter {
	const portAt = 12 // in struct nlmsghdr
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: portAt},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: loaded(^uint32(blockSize - 1))},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: loaded(block()), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
}

// loaded returns a number of 32 bits as a filter loads it.
func loaded(n uint32) uint32 {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], n)
	return binary.BigEndian.Uint32(b[:])
}
