package veth

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

func arpIgnore(link string) string { return "net/ipv4/conf/" + link + "/arp_ignore" }

// silent reports whether the kernel leaves ARP requests for the addresses of a link unanswered because of arp_ignore:
// 8 is for all addresses, and 2 for those in whose subnet the sender is not. ip-sysctl.rst of the kernel has the
// values.
func silent(value int, inSubnet bool) bool { return value == 8 || value == 2 && !inSubnet }

// CheckARP returns an error if the host leaves ARP requests of a container unanswered: because of arp_ignore of the link
// over which they arrive, which has a value, or because of that of all links. inSubnet tells whether the container is in the
// subnet of the link's address.
func CheckARP(link string, value int, inSubnet bool) error {
	if silent(value, inSubnet) {
		return fmt.Errorf("interface %q of the host answers no ARP requests of the container: net.ipv4.conf.%s.arp_ignore is %d", link, link, value)
	}
	ofAll, err := readARPIgnore("all")
	if err == nil && silent(ofAll, inSubnet) {
		err = fmt.Errorf("the host answers no ARP requests of the container: net.ipv4.conf.all.arp_ignore is %d; set it to 0 or 1", ofAll)
	}
	return err
}

// RestoreARP makes a link of the host answer ARP requests again: see CheckARP. arp_ignore of all links stays.
func RestoreARP(link string, inSubnet bool) (changed bool, err error) {
	value, err := readARPIgnore(link)
	if err != nil || !silent(value, inSubnet) {
		return false, err
	}
	return true, rtnl.SetSysctl(arpIgnore(link), "0")
}

func readARPIgnore(link string) (int, error) {
	text, err := rtnl.Sysctl(arpIgnore(link))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}
