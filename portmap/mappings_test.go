package portmap_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/portmap"
)

// dump writes one mapping per line, the way the tables of this package read.
func dump(mappings []portmap.Mapping) []string {
	var lines []string
	for _, m := range mappings {
		lines = append(lines, fmt.Sprintf("%s|%s|%d>%d/%s", m.Label, m.HostIP, m.HostPort, m.ContainerPort, m.Protocol))
	}
	return lines
}

func TestMappings(t *testing.T) {
	tests := []struct {
		name  string
		ports []portmap.Port
		opts  portmap.Options
		want  []string
	}{
		{name: "no ports"},
		{
			name:  "every port becomes tcp and udp",
			ports: []portmap.Port{{Label: "http", Value: 8080, To: 80}, {Label: "dns", Value: 5353, To: 53}},
			want:  []string{"http||8080>80/tcp", "http||8080>80/udp", "dns||5353>53/tcp", "dns||5353>53/udp"},
		},
		{
			name:  "an empty list of protocols is none",
			ports: []portmap.Port{{Value: 8080, Protocols: []string{}}},
			want:  []string{"||8080>8080/tcp", "||8080>8080/udp"},
		},
		{
			name:  "to of 0 is value",
			ports: []portmap.Port{{Value: 8080, To: 0, Protocols: []string{"tcp"}}},
			want:  []string{"||8080>8080/tcp"},
		},
		{
			name:  "to of -1 is value",
			ports: []portmap.Port{{Value: 8080, To: -1, Protocols: []string{"tcp"}}},
			want:  []string{"||8080>8080/tcp"},
		},
		{
			name:  "to of 1 is 1",
			ports: []portmap.Port{{Value: 8080, To: 1, Protocols: []string{"tcp"}}},
			want:  []string{"||8080>1/tcp"},
		},
		{
			name:  "lowest and highest",
			ports: []portmap.Port{{Value: 1, To: 65535, Protocols: []string{"tcp"}}, {Value: 65535, To: 1, Protocols: []string{"tcp"}}},
			want:  []string{"||1>65535/tcp", "||65535>1/tcp"},
		},
		{
			name:  "protocols in the order given, lower case, each once",
			ports: []portmap.Port{{Value: 80, Protocols: []string{"SCTP", "Udp", "udp", "tcp", "sctp"}}},
			want:  []string{"||80>80/sctp", "||80>80/udp", "||80>80/tcp"},
		},
		{
			name:  "range by port, then by protocol",
			ports: []portmap.Port{{Label: "r", Value: 9000, To: 80, Range: 3}},
			want:  []string{"r||9000>80/tcp", "r||9000>80/udp", "r||9001>81/tcp", "r||9001>81/udp", "r||9002>82/tcp", "r||9002>82/udp"},
		},
		{
			name:  "range without to",
			ports: []portmap.Port{{Value: 9000, Range: 2, Protocols: []string{"tcp"}}},
			want:  []string{"||9000>9000/tcp", "||9001>9001/tcp"},
		},
		{
			name:  "range of 0 and of 1",
			ports: []portmap.Port{{Value: 1, Range: 0, Protocols: []string{"tcp"}}, {Value: 2, Range: 1, Protocols: []string{"tcp"}}},
			want:  []string{"||1>1/tcp", "||2>2/tcp"},
		},
		{
			name:  "range up to the last port",
			ports: []portmap.Port{{Value: 65534, To: 1, Range: 2, Protocols: []string{"tcp"}}},
			want:  []string{"||65534>1/tcp", "||65535>2/tcp"},
		},
		{
			name:  "order of the list, not of the numbers",
			ports: []portmap.Port{{Value: 9, Protocols: []string{"tcp"}}, {Value: 8, Protocols: []string{"tcp"}}, {Value: 10, Protocols: []string{"tcp"}}},
			want:  []string{"||9>9/tcp", "||8>8/tcp", "||10>10/tcp"},
		},
		{
			name:  "host IP kept",
			ports: []portmap.Port{{Value: 80, HostIP: "10.0.0.1"}},
			want:  []string{"|10.0.0.1|80>80/tcp", "|10.0.0.1|80>80/udp"},
		},
		{
			name:  "host IP blank when ignored",
			ports: []portmap.Port{{Value: 80, HostIP: "10.0.0.1"}, {Value: 81, HostIP: "not an address"}},
			opts:  portmap.Options{IgnoreHostIP: true},
			want:  []string{"||80>80/tcp", "||80>80/udp", "||81>81/tcp", "||81>81/udp"},
		},
		{
			name: "same port on two addresses, in two families, of two protocols",
			ports: []portmap.Port{
				{Value: 80, HostIP: "10.0.0.1"},
				{Value: 80, HostIP: "10.0.0.2", Protocols: []string{"tcp"}},
				{Value: 80, HostIP: "::"},
				{Value: 80, Protocols: []string{"sctp"}},
			},
			want: []string{
				"|10.0.0.1|80>80/tcp", "|10.0.0.1|80>80/udp", "|10.0.0.2|80>80/tcp",
				"|::|80>80/tcp", "|::|80>80/udp", "||80>80/sctp",
			},
		},
		{
			name:  "one sandbox port published twice",
			ports: []portmap.Port{{Value: 8080, To: 80, Protocols: []string{"tcp"}}, {Value: 8081, To: 80, Protocols: []string{"tcp"}}},
			want:  []string{"||8080>80/tcp", "||8081>80/tcp"},
		},
		{
			name: "ranges that touch",
			ports: []portmap.Port{
				{Value: 10, Range: 2, Protocols: []string{"tcp"}},
				{Value: 12, Range: 2, Protocols: []string{"tcp"}},
			},
			want: []string{"||10>10/tcp", "||11>11/tcp", "||12>12/tcp", "||13>13/tcp"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := slices.Clone(tt.ports)
			got, err := portmap.Mappings(tt.ports, tt.opts)
			require.NoError(t, err)
			require.Equal(t, tt.want, dump(got))
			require.Equal(t, before, tt.ports, "the list of the caller is left alone")
		})
	}
}

func TestMappingsWholeRange(t *testing.T) {
	got, err := portmap.Mappings([]portmap.Port{{Value: 1, Range: 65535, Protocols: []string{"tcp", "udp", "sctp"}}}, portmap.Options{})
	require.NoError(t, err)
	require.Len(t, got, 196605)
	require.Equal(t, "||65535>65535/sctp", dump(got[len(got)-1:])[0])
}

func TestMappingsHostIP(t *testing.T) {
	tests := []struct{ given, want string }{
		{"", ""},
		{"127.0.0.1", "127.0.0.1"},
		{"0.0.0.0", "0.0.0.0"},
		{"::", "::"},
		{"0:0:0:0:0:0:0:0", "::"},
		{"FD00:0:0::000A", "fd00::a"},
		{"::ffff:10.0.0.1", "10.0.0.1"},
		{"::ffff:a00:1", "10.0.0.1"},
		{"::ffff:0.0.0.0", "0.0.0.0"},
		{"fe80::1", "fe80::1"},
	}
	for _, tt := range tests {
		t.Run(tt.given, func(t *testing.T) {
			got, err := portmap.Mappings([]portmap.Port{{Value: 1, HostIP: tt.given}}, portmap.Options{})
			require.NoError(t, err)
			require.Equal(t, tt.want, got[0].HostIP)
		})
	}
}

func TestMappingsPortErrors(t *testing.T) {
	const (
		wantPort     = "must be 1 to 65535"
		wantTo       = "must be 1 to 65535, or less than 1 for the same as value"
		wantCount    = "must not be negative; 0 and 1 mean one port"
		wantIP       = "must be an IPv4 or IPv6 address, or empty for all addresses"
		wantNoZone   = "must have no zone: a mapping knows addresses, not links"
		wantProtocol = "must be tcp, udp or sctp"
	)
	atMost := func(n int) string {
		return fmt.Sprintf("must be at most %d, so that the last port is not beyond 65535", n)
	}
	tests := []struct {
		name         string
		port         portmap.Port
		field, value string
		reason       string
	}{
		{name: "value 0", port: portmap.Port{}, field: "value", value: "0", reason: wantPort},
		{name: "value -1", port: portmap.Port{Value: -1}, field: "value", value: "-1", reason: wantPort},
		{name: "value 65536", port: portmap.Port{Value: 65536}, field: "value", value: "65536", reason: wantPort},
		{name: "value 65536 is no fault of its range", port: portmap.Port{Value: 65536, Range: 9}, field: "value", value: "65536", reason: wantPort},
		{name: "to 65536", port: portmap.Port{Value: 1, To: 65536}, field: "to", value: "65536", reason: wantTo},
		{name: "to 65536 is no fault of its range", port: portmap.Port{Value: 1, To: 65536, Range: 9}, field: "to", value: "65536", reason: wantTo},
		{name: "range -1", port: portmap.Port{Value: 1, Range: -1}, field: "range", value: "-1", reason: wantCount},
		{name: "host range beyond the end", port: portmap.Port{Value: 65535, To: 1, Range: 2}, field: "range", value: "2", reason: atMost(1)},
		{name: "sandbox range beyond the end", port: portmap.Port{Value: 1, To: 65530, Range: 7}, field: "range", value: "7", reason: atMost(6)},
		{name: "range 65536", port: portmap.Port{Value: 1, Range: 65536}, field: "range", value: "65536", reason: atMost(65535)},
		{name: "range without bounds", port: portmap.Port{Value: 2, Range: math.MaxInt}, field: "range", value: fmt.Sprint(math.MaxInt), reason: atMost(65534)},
		{name: "host name", port: portmap.Port{Value: 1, HostIP: "localhost"}, field: "hostIP", value: "localhost", reason: wantIP},
		{name: "prefix", port: portmap.Port{Value: 1, HostIP: "10.0.0.0/8"}, field: "hostIP", value: "10.0.0.0/8", reason: wantIP},
		{name: "octal IPv4", port: portmap.Port{Value: 1, HostIP: "010.0.0.1"}, field: "hostIP", value: "010.0.0.1", reason: wantIP},
		{name: "brackets", port: portmap.Port{Value: 1, HostIP: "[::1]"}, field: "hostIP", value: "[::1]", reason: wantIP},
		{name: "blank", port: portmap.Port{Value: 1, HostIP: " "}, field: "hostIP", value: " ", reason: wantIP},
		{name: "zone", port: portmap.Port{Value: 1, HostIP: "fe80::1%eth0"}, field: "hostIP", value: "fe80::1%eth0", reason: wantNoZone},
		{name: "unknown protocol", port: portmap.Port{Value: 1, Protocols: []string{"tcp", "icmp"}}, field: "protocols", value: "icmp", reason: wantProtocol},
		{name: "empty protocol", port: portmap.Port{Value: 1, Protocols: []string{""}}, field: "protocols", value: "", reason: wantProtocol},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.port.Label = "web"
			got, err := portmap.Mappings([]portmap.Port{{Value: 7}, tt.port}, portmap.Options{})
			require.Nil(t, got)
			var portErr *portmap.PortError
			require.ErrorAs(t, err, &portErr)
			require.Equal(t, &portmap.PortError{Index: 1, Label: "web", Field: tt.field, Value: tt.value, Reason: tt.reason}, portErr)
			require.NotErrorIs(t, err, portmap.ErrConflict)
			require.EqualError(t, err, fmt.Sprintf("check ports[1] (\"web\"): %s %q %s", tt.field, tt.value, tt.reason))
		})
	}
}

func TestMappingsJoinsAllFaults(t *testing.T) {
	_, err := portmap.Mappings([]portmap.Port{
		{Label: "a", Value: 0, To: 65536, Range: -1, HostIP: "x", Protocols: []string{"gre", "esp"}},
		{Label: "b", Value: 80},
		{Label: "c", Value: 70000, Range: 65536},
		{Label: "d", Value: 80, HostIP: "10.0.0.1", Protocols: []string{"udp"}},
		{Value: -5},
	}, portmap.Options{})
	want := []string{
		`check ports[0] ("a"): value "0" must be 1 to 65535`,
		`check ports[0] ("a"): to "65536" must be 1 to 65535, or less than 1 for the same as value`,
		`check ports[0] ("a"): range "-1" must not be negative; 0 and 1 mean one port`,
		`check ports[0] ("a"): hostIP "x" must be an IPv4 or IPv6 address, or empty for all addresses`,
		`check ports[0] ("a"): protocols "gre" must be tcp, udp or sctp`,
		`check ports[0] ("a"): protocols "esp" must be tcp, udp or sctp`,
		`check ports[2] ("c"): value "70000" must be 1 to 65535`,
		`check ports[2] ("c"): range "65536" must be at most 65535, so that the last port is not beyond 65535`,
		`publish udp port 80 on 10.0.0.1 ("d"): host port conflict with udp port 80 on all addresses ("b") of the same allocation`,
		`check ports[4]: value "-5" must be 1 to 65535`,
	}
	require.Error(t, err)
	require.Equal(t, want, strings.Split(err.Error(), "\n"))
	require.ErrorIs(t, err, portmap.ErrConflict)
	var conflict *portmap.ConflictError
	require.ErrorAs(t, err, &conflict)
}

func TestMappingsConflicts(t *testing.T) {
	tcp := []string{"tcp"}
	tests := []struct {
		name  string
		ports []portmap.Port
		opts  portmap.Options
		want  []string // mapping, other
	}{
		{
			name:  "exact duplicate",
			ports: []portmap.Port{{Label: "a", Value: 80, Protocols: tcp}, {Label: "a", Value: 80, Protocols: tcp}},
			want:  []string{"a||80>80/tcp", "a||80>80/tcp"},
		},
		{
			name:  "the second protocol alone",
			ports: []portmap.Port{{Label: "a", Value: 80}, {Label: "b", Value: 80, To: 8, Protocols: []string{"sctp", "UDP"}}},
			want:  []string{"b||80>8/udp", "a||80>80/udp"},
		},
		{
			name:  "wildcard and address",
			ports: []portmap.Port{{Value: 80, HostIP: "10.0.0.1", Protocols: tcp}, {Value: 80, HostIP: "::ffff:0.0.0.0", Protocols: tcp}},
			want:  []string{"|0.0.0.0|80>80/tcp", "|10.0.0.1|80>80/tcp"},
		},
		{
			name:  "one address in two spellings",
			ports: []portmap.Port{{Value: 80, HostIP: "fd00::1", Protocols: tcp}, {Value: 80, HostIP: "FD00:0::1", Protocols: tcp}},
			want:  []string{"|fd00::1|80>80/tcp", "|fd00::1|80>80/tcp"},
		},
		{
			name:  "two ranges, reported once",
			ports: []portmap.Port{{Label: "a", Value: 10, Range: 10}, {Label: "b", Value: 17, Range: 10}},
			want:  []string{"b||17>17/tcp", "a||17>17/tcp"},
		},
		{
			name: "every pair",
			ports: []portmap.Port{
				{Label: "a", Value: 80, HostIP: "10.0.0.1"}, {Label: "b", Value: 80, HostIP: "10.0.0.2"},
				{Label: "c", Value: 80, Protocols: tcp}, {Label: "d", Value: 80, HostIP: "10.0.0.2", Protocols: tcp},
			},
			want: []string{
				"c||80>80/tcp", "a|10.0.0.1|80>80/tcp",
				"c||80>80/tcp", "b|10.0.0.2|80>80/tcp",
				"d|10.0.0.2|80>80/tcp", "b|10.0.0.2|80>80/tcp",
				"d|10.0.0.2|80>80/tcp", "c||80>80/tcp",
			},
		},
		{
			name:  "ignoring the host IPs that keep two ports apart",
			ports: []portmap.Port{{Label: "a", Value: 80, HostIP: "10.0.0.1"}, {Label: "b", Value: 80, HostIP: "10.0.0.2"}},
			opts:  portmap.Options{IgnoreHostIP: true},
			want:  []string{"b||80>80/tcp", "a||80>80/tcp"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			mappings, err := portmap.Mappings(tt.ports, tt.opts)
			require.Nil(t, mappings)
			require.ErrorIs(t, err, portmap.ErrConflict)
			var got []portmap.Mapping
			for _, err := range unjoin(t, err) {
				var conflict *portmap.ConflictError
				require.ErrorAs(t, err, &conflict)
				require.Empty(t, conflict.ID+conflict.OtherID)
				got = append(got, conflict.Mapping, conflict.Other)
			}
			require.Equal(t, tt.want, dump(got))
		})
	}
}

func unjoin(t testing.TB, err error) []error {
	var joined interface{ Unwrap() []error }
	require.True(t, errors.As(err, &joined), "%v is not joined", err)
	return joined.Unwrap()
}

// FuzzMappings checks what must hold for any two ports.
func FuzzMappings(f *testing.F) {
	f.Add("a", 80, 0, int8(0), "", "", "b", 80, 0, int8(0), "", "", false)
	f.Add("a=b", 8080, 80, int8(9), "10.0.0.1", "TCP", "", 8085, 1, int8(2), "0.0.0.0", "tcp,udp", false)
	f.Add("x/y", 65535, 65535, int8(1), "::ffff:1.2.3.4", "sctp,sctp", "[", 1, -1, int8(127), "::", "udp", true)
	f.Add("", 65536, 65536, int8(-1), "fe80::1%lo", "icmp", "", 65530, 0, int8(7), "fe80::1", "", false)
	f.Fuzz(func(t *testing.T, l1 string, v1, to1 int, r1 int8, ip1, proto1 string, l2 string, v2, to2 int, r2 int8, ip2, proto2 string, ignore bool) {
		ports := []portmap.Port{
			{Label: l1, Value: v1, To: to1, Range: int(r1), HostIP: ip1, Protocols: splitList(proto1)},
			{Label: l2, Value: v2, To: to2, Range: int(r2), HostIP: ip2, Protocols: splitList(proto2)},
		}
		opts := portmap.Options{IgnoreHostIP: ignore}
		a, errA := portmap.Mappings(ports[:1], opts)
		b, errB := portmap.Mappings(ports[1:], opts)
		both, err := portmap.Mappings(ports, opts)

		w, o, found := portmap.FindConflict(b, a)
		requireConflictAsNaive(t, b, a)
		switch {
		case errA != nil || errB != nil:
			require.Error(t, err)
			requireOnlyPortErrors(t, err)
		case found:
			var conflict *portmap.ConflictError
			require.ErrorAs(t, err, &conflict)
			require.Equal(t, portmap.ConflictError{Mapping: w, Other: o}, *conflict)
		default:
			require.NoError(t, err)
			require.Equal(t, slices.Concat(a, b), both)
			requireSound(t, both)
		}
		for i, p := range ports {
			requireRoundTrip(t, p, [][]portmap.Mapping{a, b}[i], opts)
		}
	})
}

func splitList(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

func requireOnlyPortErrors(t *testing.T, err error) {
	for _, err := range unjoin(t, err) {
		var portErr *portmap.PortError
		require.ErrorAs(t, err, &portErr)
	}
}

// requireSound checks that mappings are in bounds and do not overlap.
func requireSound(t *testing.T, mappings []portmap.Mapping) {
	for i, m := range mappings {
		require.True(t, m.HostPort >= 1 && m.HostPort <= 65535, "%v", m)
		require.True(t, m.ContainerPort >= 1 && m.ContainerPort <= 65535, "%v", m)
		require.Contains(t, []string{"tcp", "udp", "sctp"}, m.Protocol)
		for j, o := range mappings {
			if m.Overlaps(o) != (i == j) || o.Overlaps(m) != (i == j) {
				t.Fatalf("%v and %v: overlap must be %v", m, o, i == j)
			}
		}
	}
}

// requireRoundTrip checks that a good port still means the same after being
// written and read.
func requireRoundTrip(t *testing.T, p portmap.Port, mappings []portmap.Mapping, opts portmap.Options) {
	if mappings == nil || opts.IgnoreHostIP {
		return
	}
	read, err := portmap.Parse(p.String())
	require.NoError(t, err)
	again, err := portmap.Mappings([]portmap.Port{read}, opts)
	require.NoError(t, err)
	require.Equal(t, mappings, again)
}
