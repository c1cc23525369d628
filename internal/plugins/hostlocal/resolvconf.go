package hostlocal

import (
	"context"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/internal/smallfile"
)

// maxResolvConf is far above the limits of any resolver.
const maxResolvConf = 64 << 10

// readResolvConf reads a regular file in the format of resolv.conf(5).
func readResolvConf(ctx context.Context, path string) (types.DNS, error) {
	data, err := smallfile.ReadContext(ctx, path, maxResolvConf)
	if err != nil {
		return types.DNS{}, fmt.Errorf("read resolvConf %q: %w", path, err)
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
