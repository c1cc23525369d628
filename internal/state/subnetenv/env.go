package subnetenv

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/smallfile"
)

// DefaultFile is the file that flanneld writes by default.
const DefaultFile = "/run/flannel/subnet.env"

// maxSize is far above the size of any real file.
const maxSize = 64 << 10

// Env is the content of the file.
type Env struct {
	// Networks and IPv6Networks are the networks of the whole cluster, without
	// duplicates.
	Networks, IPv6Networks []netip.Prefix
	// Subnet and IPv6Subnet are the host's parts of them. At least one is valid.
	Subnet, IPv6Subnet netip.Prefix
	// MTU is that of flannel's interface, less the overhead of its tunnel.
	MTU uint32
	// IPMasq reports that flanneld itself masquerades traffic that leaves the cluster.
	IPMasq bool
}

// Clusters returns the networks of the whole cluster, of both families.
func (e Env) Clusters() []netip.Prefix { return slices.Concat(e.Networks, e.IPv6Networks) }

// The keys of the file. All others are ignored.
const (
	keyNetwork     = "FLANNEL_NETWORK"
	keySubnet      = "FLANNEL_SUBNET"
	keyIPv6Network = "FLANNEL_IPV6_NETWORK"
	keyIPv6Subnet  = "FLANNEL_IPV6_SUBNET"
	keyMTU         = "FLANNEL_MTU"
	keyIPMasq      = "FLANNEL_IPMASQ"
)

const remedy = "correct it, or restart flanneld, which writes the file"

// ReadEnv reads the file. Its errors name the file, the line and the remedy. If there
// is no file, which is so until flanneld has joined the cluster, errors.Is finds
// fs.ErrNotExist.
func ReadEnv(path string) (Env, error) {
	data, err := smallfile.Read(path, maxSize)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Env{}, fmt.Errorf(`read flannel's subnet: %w: start flanneld, which writes the file, or set "subnetFile" to its -subnet-file`, err)
	case errors.Is(err, smallfile.ErrNotRegular), errors.Is(err, smallfile.ErrTooLarge):
		return Env{}, fmt.Errorf(`read flannel's subnet: %q: %w: set "subnetFile" to flanneld's -subnet-file`, path, err)
	case err != nil:
		return Env{}, fmt.Errorf("read flannel's subnet: %w", err)
	}
	return ParseEnv(path, data)
}

// ParseEnv parses the content of a file. The path is for its errors only.
func ParseEnv(path string, data []byte) (Env, error) {
	var e Env
	seen := map[string]bool{}
	number := 0
	for line := range bytes.Lines(data) {
		number++
		key, value, ok := strings.Cut(strings.TrimRight(string(line), "\r\n"), "=")
		known, err := e.set(key, value)
		if known && !ok {
			err = errors.New("the value is missing")
		}
		if err != nil {
			return Env{}, fmt.Errorf("read flannel's subnet: %s:%d: %s: %w: %s", path, number, key, err, remedy)
		}
		if known {
			seen[key] = true
		}
	}
	if missing := missing(seen); missing != "" {
		return Env{}, fmt.Errorf("read flannel's subnet: %s has no %s: %s", path, missing, remedy)
	}
	if err := e.validate(); err != nil {
		return Env{}, fmt.Errorf("read flannel's subnet: %s: %w: %s", path, err, remedy)
	}
	return e, nil
}

// validate refuses a subnet that is not part of the network of the cluster. Packets to other hosts' addresses
// would not pass flannel.
func (e Env) validate() error {
	for _, family := range []struct {
		key, networksKey string
		subnet           netip.Prefix
		networks         []netip.Prefix
	}{
		{keySubnet, keyNetwork, e.Subnet, e.Networks},
		{keyIPv6Subnet, keyIPv6Network, e.IPv6Subnet, e.IPv6Networks},
	} {
		holds := func(network netip.Prefix) bool {
			return network.Bits() <= family.subnet.Bits() && network.Contains(family.subnet.Addr())
		}
		if family.subnet.IsValid() && !slices.ContainsFunc(family.networks, holds) {
			return fmt.Errorf("%s: %s is not in %s", family.key, family.subnet, family.networksKey)
		}
	}
	return nil
}

// set sets the field of a key, and reports whether there is such a field. If a file has
// a key twice, the last value counts.
func (e *Env) set(key, value string) (known bool, err error) {
	switch key {
	case keyNetwork:
		e.Networks, err = parseNetworks(value, netip.Addr.Is4)
	case keyIPv6Network:
		e.IPv6Networks, err = parseNetworks(value, netip.Addr.Is6)
	case keySubnet:
		e.Subnet, err = parseNetwork(value, netip.Addr.Is4)
	case keyIPv6Subnet:
		e.IPv6Subnet, err = parseNetwork(value, netip.Addr.Is6)
	case keyMTU:
		var mtu uint64
		if mtu, err = strconv.ParseUint(value, 10, 32); err != nil {
			return true, fmt.Errorf("%.64q is not the number of an MTU", value)
		}
		e.MTU = uint32(mtu)
	case keyIPMasq:
		e.IPMasq = value == "true"
	default:
		return false, nil
	}
	return true, err
}

// parseNetworks parses a list of networks that are separated by commas.
func parseNetworks(list string, ofFamily func(netip.Addr) bool) ([]netip.Prefix, error) {
	var networks []netip.Prefix
	for text := range strings.SplitSeq(list, ",") {
		network, err := parseNetwork(text, ofFamily)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(networks, network) {
			networks = append(networks, network)
		}
	}
	return networks, nil
}

// parseNetwork parses an address of a family with a prefix length, and clears its host part, which
// is the address of flannel's interface. It refuses networks of which no host can have an address.
func parseNetwork(text string, ofFamily func(netip.Addr) bool) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil || !ofFamily(p.Addr()) {
		return p, fmt.Errorf("%.64q is not a network such as 10.244.0.0/16, or fd00:10:244::/48 for IPv6", text)
	}
	if use := names.ReservedPrefix(p); use != "" {
		return p, fmt.Errorf("%s overlaps %s", p, use)
	}
	return p.Masked(), nil
}

// missing returns the keys that a file lacks, for messages. One family is enough.
func missing(seen map[string]bool) string {
	var keys []string
	for _, either := range [][]string{{keyNetwork, keyIPv6Network}, {keySubnet, keyIPv6Subnet}, {keyMTU}, {keyIPMasq}} {
		if !slices.ContainsFunc(either, func(key string) bool { return seen[key] }) {
			keys = append(keys, strings.Join(either, " or "))
		}
	}
	return strings.Join(keys, ", no ")
}
