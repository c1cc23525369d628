package allocnet_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/portmap"
)

func TestResolvConf(t *testing.T) {
	for _, c := range []struct {
		name string
		dns  *allocnet.DNS
		want string
	}{
		{"none", nil, ""},
		{"empty", &allocnet.DNS{}, ""},
		{"all", &allocnet.DNS{
			Servers: []string{"192.0.2.53", "2001:db8::53"}, Domain: "ignored.example", Searches: []string{"a.example", "b.example"},
			Options: []string{"ndots:5", "edns0"},
		}, "search a.example b.example\nnameserver 192.0.2.53\nnameserver 2001:db8::53\noptions ndots:5 edns0\n"},
		{"domain", &allocnet.DNS{Servers: []string{"192.0.2.53"}, Domain: "a.example"}, "search a.example\nnameserver 192.0.2.53\n"},
		{"unusable", &allocnet.DNS{
			Servers: []string{"", "192.0.2.1\nnameserver 192.0.2.2", "192.0.2.3"}, Searches: []string{"a b", "\x1b"}, Domain: "c.example", Options: []string{"x\ty"},
		}, "search c.example\nnameserver 192.0.2.3\n"},
	} {
		require.Equal(t, c.want, string(allocnet.ResolvConf(c.dns)), c.name)
	}
}

const local = "127.0.0.1\tlocalhost\n" +
	"::1\tlocalhost ip6-localhost ip6-loopback\n" +
	"fe00::\tip6-localnet\n" +
	"ff00::\tip6-mcastprefix\n" +
	"ff02::1\tip6-allnodes\n" +
	"ff02::2\tip6-allrouters\n"

func TestHosts(t *testing.T) {
	both := &allocnet.Status{Address: "10.0.0.2", AddressIPv6: "fd00::2"}
	for _, c := range []struct {
		name     string
		status   *allocnet.Status
		hostname string
		extra    []allocnet.Host
		want     string
	}{
		{"nothing", nil, "web", nil, ""},
		{"no address", &allocnet.Status{}, "web", nil, ""},
		{"no name", both, "", nil, ""},
		{"both families", both, "web", nil, "10.0.0.2\tweb\nfd00::2\tweb\n"},
		{"IPv6 alone", &allocnet.Status{Address: "fd00::2", AddressIPv6: "fd00::2"}, "web", nil, "fd00::2\tweb\n"},
		{"qualified", &allocnet.Status{Address: "10.0.0.2"}, "web.job.example", nil, "10.0.0.2\tweb.job.example web\n"},
		{"extra", both, "web", []allocnet.Host{{Address: "192.0.2.1", Names: []string{"db", "db.example"}}},
			"10.0.0.2\tweb\nfd00::2\tweb\n192.0.2.1\tdb db.example\n"},
		{"unusable", both, "we b", []allocnet.Host{{Address: "192.0.2.1\n", Names: []string{"db"}}, {Address: "192.0.2.1", Names: []string{"", "a\nb"}}}, ""},
	} {
		require.Equal(t, local+c.want, string(allocnet.Hosts(c.status, c.hostname, c.extra...)), c.name)
	}
}

func TestEnvironment(t *testing.T) {
	require.Empty(t, allocnet.Environment(nil))
	require.Empty(t, allocnet.Environment(&allocnet.Status{}))
	status := &allocnet.Status{InterfaceName: "eth0", Address: "10.0.0.2", AddressIPv6: "fd00::2", Ports: []portmap.Mapping{
		{Label: "http", HostPort: 8080, ContainerPort: 80, Protocol: "tcp"},
		{Label: "http", HostPort: 8080, ContainerPort: 80, Protocol: "udp", HostIP: "192.0.2.1"},
		{HostPort: 53, ContainerPort: 53, Protocol: "udp"},
		{Label: "my-metrics.v1", HostPort: 9100, ContainerPort: 9100, Protocol: "tcp", HostIP: "127.0.0.1"},
		{Label: "range", HostPort: 7000, ContainerPort: 6000, Protocol: "tcp"},
		{Label: "range", HostPort: 7001, ContainerPort: 6001, Protocol: "tcp"},
	}}
	require.Equal(t, strings.TrimSpace(`
ALLOCNET_INTERFACE=eth0
ALLOCNET_IP=10.0.0.2
ALLOCNET_IPV6=fd00::2
ALLOCNET_PORT_HTTP=80
ALLOCNET_HOST_PORT_HTTP=8080
ALLOCNET_PORT_MY_METRICS_V1=9100
ALLOCNET_HOST_PORT_MY_METRICS_V1=9100
ALLOCNET_HOST_IP_MY_METRICS_V1=127.0.0.1
ALLOCNET_PORT_RANGE=6000
ALLOCNET_HOST_PORT_RANGE=7000
`), strings.Join(allocnet.Environment(status), "\n"))
}
