package hostlocal

import (
	"fmt"
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// readResolvConf reads a file in the format of resolv.conf(5).
func readResolvConf(path string) (types.DNS, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return types.DNS{}, fmt.Errorf("read resolvConf: %w", err)
	}
	var dns types.DNS
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			dns.Nameservers = append(dns.Nameservers, fields[1])
		case "domain":
			dns.Domain = fields[1]
		case "search":
			dns.Search = append(dns.Search, fields[1:]...)
		case "options":
			dns.Options = append(dns.Options, fields[1:]...)
		}
	}
	return dns, nil
}
