package announce

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// DefaultProtocol is the protocol of the routes without a configured one. iproute2 has no
// name for it.
const DefaultProtocol = 91

// Validate returns an error for a table or a protocol that routes must not have.
func Validate(table uint32, protocol uint8) error {
	switch table {
	case unix.RT_TABLE_UNSPEC:
		return errors.New("table is missing: give the number of the table that the routing daemon reads, such as 100")
	case unix.RT_TABLE_DEFAULT, unix.RT_TABLE_MAIN, unix.RT_TABLE_LOCAL:
		return fmt.Errorf("table %d is one in which the host looks for its own routes: choose another one, such as 100", table)
	}
	if owner := ownerOf(protocol); owner != "" {
		return fmt.Errorf("protocol %d belongs to %s: choose another one, such as %d", protocol, owner, DefaultProtocol)
	}
	return nil
}

// ownerOf returns the program that uses a protocol number, "" if none is known. The numbers
// are those of linux/rtnetlink.h and of FRR.
func ownerOf(protocol uint8) string {
	const firstFRR, lastFRR = unix.RTPROT_BGP, 198
	switch {
	case protocol <= unix.RTPROT_KERNEL:
		return "the kernel"
	case protocol <= unix.RTPROT_STATIC:
		return "routes that administrators add"
	case protocol >= unix.RTPROT_GATED && protocol <= unix.RTPROT_KEEPALIVED,
		protocol >= firstFRR && protocol <= lastFRR, protocol == unix.RTPROT_BABEL, protocol == unix.RTPROT_OVN, protocol == unix.RTPROT_OPENR:
		return "a routing daemon or a similar program"
	}
	return ""
}
