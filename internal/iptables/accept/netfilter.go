package accept

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// netfilter is a lasting socket for questions about rules. Its zero value is
// closed, and opens itself. The kernel answers before sending returns, so nothing
// here waits, and two system calls per question are the whole cost: package
// netlink's connections would take four times as long.
type netfilter struct {
	mu     sync.Mutex
	opened bool
	fd     int
	buffer []byte
}

// all is the number of answers to a question that asks for all there is.
const all = -1

var errNotRead = errors.New("answer cannot be read")

// ask sends questions and reads that many answers. After an error the socket may
// hold answers that nobody reads, and is not used again.
func (n *netfilter) ask(questions []byte, answers int) ([]rule, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.open(); err != nil {
		return nil, err
	}
	rules, err := n.exchange(questions, answers)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ask nfnetlink for rules: %w", err), n.shut())
	}
	return rules, nil
}

func (n *netfilter) exchange(questions []byte, answers int) (rules []rule, err error) {
	if err := unix.Sendto(n.fd, questions, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	for done := answers == 0; !done; {
		size, _, flags, _, err := unix.Recvmsg(n.fd, n.buffer, nil, unix.MSG_DONTWAIT)
		if err != nil {
			return nil, err
		}
		messages, err := syscall.ParseNetlinkMessage(n.buffer[:size])
		if err != nil || flags&unix.MSG_TRUNC != 0 {
			return nil, errors.Join(errNotRead, err)
		}
		for _, message := range messages {
			if message.Header.Type == unix.NLMSG_DONE {
				done = true
				break
			}
			r, err := answer(message)
			if err != nil {
				return nil, err
			}
			rules = append(rules, r)
		}
		done = done || len(rules) == answers
	}
	return rules, nil
}

// answer reads one.
func answer(message syscall.NetlinkMessage) (rule, error) {
	if message.Header.Flags&unix.NLM_F_DUMP_INTR != 0 {
		return rule{}, unix.EINTR
	}
	if message.Header.Type != unix.NLMSG_ERROR {
		return parseRule(message.Data)
	}
	if len(message.Data) < 4 {
		return rule{}, errNotRead
	}
	return rule{}, unix.Errno(-int32(binary.NativeEndian.Uint32(message.Data)))
}

func (n *netfilter) open() error {
	if n.opened {
		return nil
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open nfnetlink: %w", err)
	}
	n.fd, n.opened = fd, true
	if n.buffer == nil {
		n.buffer = make([]byte, 32<<10) // the most that the kernel puts into one part
	}
	return nil
}

func (n *netfilter) shut() error {
	if !n.opened {
		return nil
	}
	n.opened = false
	return unix.Close(n.fd)
}

func (n *netfilter) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.shut()
}
