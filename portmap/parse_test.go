package portmap_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/portmap"
)

func TestParse(t *testing.T) {
	tests := []struct {
		given string
		want  portmap.Port
		text  string // what String makes of it; "" is given
	}{
		{given: "8080", want: portmap.Port{Value: 8080}},
		{given: "1", want: portmap.Port{Value: 1}},
		{given: "65535:65535", want: portmap.Port{Value: 65535, To: 65535}},
		{given: "8080:80", want: portmap.Port{Value: 8080, To: 80}},
		{given: "8080/udp", want: portmap.Port{Value: 8080, Protocols: []string{"udp"}}},
		{
			given: "http=127.0.0.1:8080:80/tcp",
			want:  portmap.Port{Label: "http", HostIP: "127.0.0.1", Value: 8080, To: 80, Protocols: []string{"tcp"}},
		},
		{
			given: "[::1]:8080:80/tcp+udp",
			want:  portmap.Port{HostIP: "::1", Value: 8080, To: 80, Protocols: []string{"tcp", "udp"}},
		},
		{
			given: "9000-9010:80-90/sctp",
			want:  portmap.Port{Value: 9000, To: 80, Range: 11, Protocols: []string{"sctp"}},
		},
		{given: "9000-9010", want: portmap.Port{Value: 9000, Range: 11}},
		{given: "1-65535", want: portmap.Port{Value: 1, Range: 65535}},
		{given: "10.0.0.1:80", want: portmap.Port{HostIP: "10.0.0.1", Value: 80}},
		{given: "0.0.0.0:80", want: portmap.Port{HostIP: "0.0.0.0", Value: 80}},
		{given: "[::]:80", want: portmap.Port{HostIP: "::", Value: 80}},
		{given: "a=b=80", want: portmap.Port{Label: "a=b", Value: 80}},
		{given: "a/b:[c]=80", want: portmap.Port{Label: "a/b:[c]", Value: 80}},
		{given: "0", want: portmap.Port{}},
		{given: "http=127.0.0.1:0:80/tcp", want: portmap.Port{Label: "http", HostIP: "127.0.0.1", To: 80, Protocols: []string{"tcp"}}},
		{given: "80-80:90-90", want: portmap.Port{Value: 80, To: 90}, text: "80:90"},
		{given: "0080", want: portmap.Port{Value: 80}, text: "80"},
		{given: "80/UDP+Tcp+udp", want: portmap.Port{Value: 80, Protocols: []string{"udp", "tcp"}}, text: "80/udp+tcp"},
		{given: "[FD00:0::1]:80", want: portmap.Port{HostIP: "fd00::1", Value: 80}, text: "[fd00::1]:80"},
		{given: "[::ffff:10.0.0.1]:80", want: portmap.Port{HostIP: "10.0.0.1", Value: 80}, text: "10.0.0.1:80"},
		{given: "[10.0.0.1]:80", want: portmap.Port{HostIP: "10.0.0.1", Value: 80}, text: "10.0.0.1:80"},
	}
	for _, tt := range tests {
		t.Run(tt.given, func(t *testing.T) {
			got, err := portmap.Parse(tt.given)
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
			if tt.text == "" {
				tt.text = tt.given
			}
			require.Equal(t, tt.text, got.String())
		})
	}
}

func TestParseErrors(t *testing.T) {
	const wantIP = "must be an IPv4 or IPv6 address, or empty for all addresses; IPv6 goes in brackets"
	tests := []struct{ given, want string }{
		{"", `host port "" must be 1 to 65535, or 0 for a free host port`},
		{"http", `host port "http" must be 1 to 65535, or 0 for a free host port`},
		{"00", `host port "00" must be 1 to 65535, or 0 for a free host port`},
		{"0-5", `host port "0-5" must not be a range: 0 stands for one free host port`},
		{"0:80-90", `container port "80-90" must be a range as long as host port "0"`},
		{"-1", `host port "" must be 1 to 65535, or 0 for a free host port`},
		{"-1:80", `host port "" must be 1 to 65535, or 0 for a free host port`},
		{"+1", `host port "+1" must be 1 to 65535, or 0 for a free host port`},
		{"65536", `host port "65536" must be 1 to 65535, or 0 for a free host port`},
		{" 80", `host port " 80" must be 1 to 65535, or 0 for a free host port`},
		{":80", `host port "" must be 1 to 65535, or 0 for a free host port`},
		{"80x:80", `host port "80x" must be 1 to 65535, or 0 for a free host port`},
		{"http=", `host port "" must be 1 to 65535, or 0 for a free host port`},
		{"80:", `container port "" must be 1 to 65535`},
		{"80:0", `container port "0" must be 1 to 65535`},
		{"80:-1", `container port "" must be 1 to 65535`},
		{"80:65536", `container port "65536" must be 1 to 65535`},
		{"80:http", `container port "http" must be 1 to 65535`},
		{"[::1]:80:80:80", `container port "80:80" must be 1 to 65535`},
		{"80-", `end of host port "" must be 1 to 65535`},
		{"80-70", `end of host port "70" must not be less than 80`},
		{"65535-65536", `end of host port "65536" must be 1 to 65535`},
		{"80-81-82", `end of host port "81-82" must be 1 to 65535`},
		{"80-90:80-70", `end of container port "70" must not be less than 80`},
		{"80-90:70", `container port "70" must be a range as long as host port "80-90"`},
		{"80:70-90", `container port "70-90" must be a range as long as host port "80"`},
		{"80-90:70-79", `container port "70-79" must be a range as long as host port "80-90"`},
		{"localhost:80", `host IP "localhost" ` + wantIP},
		{"10.0.0:80", `host IP "10.0.0" ` + wantIP},
		{"80:80:80", `host IP "80" ` + wantIP},
		{"fd00::1:80", `host IP "fd00" ` + wantIP},
		{"::1:80", `host IP is empty; IPv6 goes in brackets`},
		{"[]:80", `host IP is empty; IPv6 goes in brackets`},
		{"[::1]", `host IP in brackets must end with "]:"`},
		{"[::1:80", `host IP in brackets must end with "]:"`},
		{"[fe80::1%eth0]:80", `host IP "fe80::1%eth0" must have no zone: a mapping knows addresses, not links; IPv6 goes in brackets`},
		{"=80", `label before "=" is empty`},
		{"80/", `protocol "" must be tcp, udp or sctp`},
		{"80/icmp", `protocol "icmp" must be tcp, udp or sctp`},
		{"80/tcp+", `protocol "" must be tcp, udp or sctp`},
		{"80/tcp/udp", `protocol "tcp/udp" must be tcp, udp or sctp`},
		{"80/tcp,udp", `protocol "tcp,udp" must be tcp, udp or sctp`},
	}
	for _, tt := range tests {
		t.Run(tt.given, func(t *testing.T) {
			got, err := portmap.Parse(tt.given)
			require.Zero(t, got)
			require.EqualError(t, err, fmt.Sprintf("parse port %q: %s; an example is http=127.0.0.1:8080:80/tcp", tt.given, tt.want))
		})
	}
}

// Ports that were not made by Parse keep their meaning.
func TestPortString(t *testing.T) {
	tests := []struct {
		port portmap.Port
		want string
	}{
		{portmap.Port{Value: 80, To: -1}, "80"},
		{portmap.Port{Value: 80, Range: 1}, "80"},
		{portmap.Port{Value: 80, To: 1, Range: 2}, "80-81:1-2"},
		{portmap.Port{Value: 80, HostIP: "::ffff:1.2.3.4"}, "[::ffff:1.2.3.4]:80"},
		{portmap.Port{Value: 80, Protocols: []string{"TCP", "tcp"}}, "80/TCP+tcp"},
	}
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			require.Equal(t, tt.want, tt.port.String())
			want, err := portmap.Mappings([]portmap.Port{tt.port}, portmap.Options{})
			require.NoError(t, err)
			require.Equal(t, want, parseAll(t, tt.want))
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"8080", "8080:80", "http=127.0.0.1:8080:80/tcp", "[::1]:8080:80/tcp+udp", "9000-9010:80-90/sctp",
		"a=b=80", "[::ffff:10.0.0.1]:80", "[fe80::1%eth0]:80", "1-65535:1-65535/TCP", "::1:80", "[", "=", "/", "-", ":", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := portmap.Parse(s)
		if err != nil {
			require.Zero(t, p)
			require.ErrorContains(t, err, "parse port")
			return
		}
		again, err := portmap.Parse(p.String())
		require.NoError(t, err)
		require.Equal(t, p, again)
		require.Equal(t, p.String(), again.String())

		if p.Value == 0 {
			return // Setup picks a number
		}
		_, err = portmap.Mappings([]portmap.Port{p}, portmap.Options{})
		require.NoError(t, err, "what can be parsed can be published")
	})
}
