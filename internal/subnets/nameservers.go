package subnets

import (
	"bufio"
	"errors"
	"net/netip"
	"os"
	"strings"
)

// NameServers returns the name servers of a resolver configuration.
func NameServers(file string) (list []netip.Addr, err error) {
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if addr, err := netip.ParseAddr(fields[1]); err == nil {
			list = append(list, addr.WithZone("").Unmap())
		}
	}
	return list, nil
}
