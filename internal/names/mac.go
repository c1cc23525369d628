package names

import (
	"errors"
	"fmt"
	"net"
)

// ParseMAC parses the hardware address of an Ethernet interface. It refuses what an interface cannot
// have: see CheckMAC. The kernel would truncate a longer one.
func ParseMAC(text string) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(text)
	switch {
	case err != nil:
		return nil, errors.New("not a hardware address")
	case len(mac) != 6:
		return nil, fmt.Errorf("it has %d bytes, not 6", len(mac))
	}
	return mac, CheckMAC(mac)
}

// CheckMAC refuses the Ethernet addresses that the kernel refuses for an interface, see
// is_valid_ether_addr: group addresses and that of only zeros.
func CheckMAC(mac net.HardwareAddr) error {
	switch {
	case mac[0]&1 == 1:
		return errors.New("a group address: the first byte must be even")
	case [6]byte(mac) == [6]byte{}:
		return errors.New("all bytes are zero")
	}
	return nil
}
