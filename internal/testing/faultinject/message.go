package faultinject

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// send returns the point of a sendto call, of a netlink message or other data.
func (c *caller) send(name string) (*Point, error) {
	return c.message(name, func() ([]byte, error) { return c.read(1, int(min(c.args[2], longestMessage))) })
}

// sendVector returns the point of a sendmsg call.
func (c *caller) sendVector(name string) (*Point, error) {
	return c.message(name, func() ([]byte, error) {
		header, err := c.read(1, 56) // struct msghdr
		if err != nil {
			return nil, err
		}
		vector, n := binary.NativeEndian.Uint64(header[16:]), binary.NativeEndian.Uint64(header[24:])
		var all []byte
		for i := range min(n, longestVector) {
			entry, err := c.readAt(vector+16*i, 16)
			if err != nil {
				return nil, err
			}
			size := binary.NativeEndian.Uint64(entry[8:])
			if size == 0 {
				continue
			}
			part, err := c.readAt(binary.NativeEndian.Uint64(entry), int(min(size, longestMessage)))
			if err != nil {
				return nil, err
			}
			all = append(all, part...)
		}
		return all, nil
	})
}

func (c *caller) message(name string, text func() ([]byte, error)) (*Point, error) {
	domain, protocol, err := c.socket(0)
	if err != nil {
		return nil, err
	}
	if domain != unix.AF_NETLINK {
		return &Point{Kind: Message, Call: name, Object: "socket"}, nil
	}
	data, err := text()
	if err != nil {
		return nil, err
	}
	changes := slices.Compact(changesOf(protocol, data))
	if len(changes) == 0 {
		return nil, nil
	}
	kind, _, _ := strings.Cut(changes[0], " ")
	for i := range changes {
		changes[i] = strings.TrimPrefix(changes[i], kind+" ")
	}
	return &Point{Kind: Kind(kind), Call: strings.Join(changes, " ")}, nil
}

// changesOf names the messages that change something, each after its kind.
func changesOf(protocol int, data []byte) []string {
	var changes []string
	for len(data) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(data))
		number := binary.NativeEndian.Uint16(data[4:])
		if change := changeOf(protocol, number); change != "" {
			changes = append(changes, change)
		}
		size = (max(size, unix.SizeofNlMsghdr) + 3) &^ 3
		data = data[min(size, len(data)):]
	}
	return changes
}

// routeActions are the actions of rtnetlink: message types come in groups of
// four.
var routeActions = [4]string{"NEW", "DEL", "", "SET"}

var routeObjects = map[uint16]string{
	unix.RTM_NEWLINK: "LINK", unix.RTM_NEWADDR: "ADDR", unix.RTM_NEWROUTE: "ROUTE", unix.RTM_NEWNEIGH: "NEIGH",
	unix.RTM_NEWRULE: "RULE", unix.RTM_NEWQDISC: "QDISC", unix.RTM_NEWTCLASS: "TCLASS", unix.RTM_NEWTFILTER: "TFILTER",
	unix.RTM_NEWNSID: "NSID",
}

// tablesReads are the messages of nf_tables that change nothing: requests that
// only read, and messages that only the kernel sends.
var tablesReads = []uint16{
	unix.NFT_MSG_GETTABLE, unix.NFT_MSG_GETCHAIN, unix.NFT_MSG_GETRULE, unix.NFT_MSG_GETSET, unix.NFT_MSG_GETSETELEM,
	unix.NFT_MSG_GETGEN, unix.NFT_MSG_GETOBJ, unix.NFT_MSG_GETFLOWTABLE, unix.NFT_MSG_NEWGEN, unix.NFT_MSG_TRACE,
}

var tablesNames = map[uint16]string{
	unix.NFT_MSG_NEWTABLE: "NEWTABLE", unix.NFT_MSG_DELTABLE: "DELTABLE", unix.NFT_MSG_NEWCHAIN: "NEWCHAIN",
	unix.NFT_MSG_DELCHAIN: "DELCHAIN", unix.NFT_MSG_NEWRULE: "NEWRULE", unix.NFT_MSG_DELRULE: "DELRULE",
	unix.NFT_MSG_NEWSET: "NEWSET", unix.NFT_MSG_DELSET: "DELSET", unix.NFT_MSG_NEWSETELEM: "NEWSETELEM",
	unix.NFT_MSG_DELSETELEM: "DELSETELEM",
}

const (
	subsystemConntrack = 1
	subsystemTables    = 10
	conntrackNew       = 0
	conntrackDelete    = 2
)

// changeOf names one message. It returns "" if the message only reads.
func changeOf(protocol int, number uint16) string {
	subsystem, action := number>>8, number&0xff
	switch {
	case number < 16: // control messages such as NLMSG_NOOP, and the delimiters of a batch
		return ""
	case protocol == unix.NETLINK_ROUTE:
		first := number &^ 3
		if routeActions[number&3] == "" {
			return ""
		}
		object := routeObjects[first]
		if object == "" {
			object = fmt.Sprint(first)
		}
		return fmt.Sprintf("%s %s%s", Route, routeActions[number&3], object)
	case protocol == unix.NETLINK_NETFILTER && subsystem == subsystemTables:
		if slices.Contains(tablesReads, action) {
			return ""
		}
		name := tablesNames[action]
		if name == "" {
			name = fmt.Sprint("message ", action)
		}
		return fmt.Sprintf("%s %s", NFTables, name)
	case protocol == unix.NETLINK_NETFILTER && subsystem == subsystemConntrack:
		if action == conntrackNew || action == conntrackDelete {
			return fmt.Sprintf("%s %s", Conntrack, map[uint16]string{conntrackNew: "NEW", conntrackDelete: "DELETE"}[action])
		}
		return ""
	case protocol == unix.NETLINK_NETFILTER && number <= unix.NFNL_MSG_BATCH_END:
		return ""
	case protocol == unix.NETLINK_SOCK_DIAG && number != unix.SOCK_DESTROY:
		return ""
	case protocol == unix.NETLINK_GENERIC && number == unix.GENL_ID_CTRL:
		return ""
	}
	return fmt.Sprintf("%s protocol %d message %d", Netlink, protocol, number)
}
