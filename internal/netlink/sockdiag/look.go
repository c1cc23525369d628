package sockdiag

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Ports selects sockets by protocol and port. Unless Only6 is set, it selects sockets
// of both families, because IPv6 sockets can accept IPv4.
type Ports struct {
	Protocol uint8 // unix.IPPROTO_TCP or unix.IPPROTO_UDP
	Numbers  []uint16
	Only6    bool // only IPv6 sockets
}

// Look returns the sockets that listen on the ports in the network namespace of the
// calling thread, in the order of wanted. The kernel filters them: the cost does not
// grow with the number of connections, and little with that of listeners on other
// ports.
func Look(wanted ...Ports) (found []Listener, err error) {
	err = sock.Lend(unix.NETLINK_SOCK_DIAG, func(s *sock.Socket) error {
		found, err = look(s, wanted)
		return err
	})
	return found, err
}

func look(s *sock.Socket, wanted []Ports) (found []Listener, err error) {
	for _, w := range wanted {
		ports := slices.Compact(slices.Sorted(slices.Values(w.Numbers)))
		if len(ports) == 0 {
			continue
		}
		each := func(answer []byte) {
			if l, ok := parse(answer, w.Protocol, ports); ok {
				found = append(found, l)
			}
		}
		if err := list(s, w, ports, each); err != nil {
			return nil, fmt.Errorf("list sockets of protocol %d: %w", w.Protocol, err)
		}
	}
	return found, nil
}

// list requests the sockets of each family.
func list(s *sock.Socket, w Ports, ports []uint16, each func(answer []byte)) error {
	switch {
	case w.Only6:
		return dump(s, byFamily, request(w.Protocol, unix.AF_INET6, ports), each)
	case w.Protocol == unix.IPPROTO_TCP:
		return dump(s, tcp, tcpRequest(ports), each)
	}
	err := dump(s, byFamily, request(w.Protocol, unix.AF_INET, ports), each)
	if err == nil {
		err = dump(s, byFamily, request(w.Protocol, unix.AF_INET6, ports), each)
	}
	return err
}

// Types of requests.
const (
	tcp      = 18 // TCPDIAG_GETSOCK
	byFamily = 20 // SOCK_DIAG_BY_FAMILY
)

// dump makes a request and calls each with every answer, which is valid only during
// that call.
func dump(s *sock.Socket, kind uint16, body func(*sock.Requests), each func(answer []byte)) error {
	return sock.Build(func(r *sock.Requests) {
		r.Begin("", kind, unix.NLM_F_DUMP)
		body(r)
	}, func(r *sock.Requests) error {
		return s.Dump(context.Background(), r, func(answer []byte) error {
			each(answer)
			return nil
		})
	})
}
