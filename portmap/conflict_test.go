package portmap_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/portmap"
)

func TestOverlapsHostIP(t *testing.T) {
	// Row and column are in the same order; x is an overlap.
	const table = `
		""                  x x x x x x x x x x
		0.0.0.0             x x x x x . . . . .
		10.0.0.1            x x x . x . . . . .
		10.0.0.2            x x . x . . . . . .
		::ffff:10.0.0.1     x x x . x . . . . .
		::                  x . . . . x x x x .
		fd00::1             x . . . . x x . x .
		fd00::2             x . . . . x . x . .
		FD00:0::1%eth0      x . . . . x x . x .
		localhost           x . . . . . . . . x`
	var ips, rows []string
	for line := range strings.Lines(strings.TrimSpace(table)) {
		fields := strings.Fields(line)
		ips = append(ips, strings.Trim(fields[0], `"`))
		rows = append(rows, strings.Join(fields[1:], ""))
	}
	require.Len(t, ips, 10)
	for i, a := range ips {
		require.Len(t, rows[i], len(ips))
		for j, b := range ips {
			require.Equal(t, rows[i][j], rows[j][i], "the table is symmetric at %q, %q", a, b)
			t.Run(fmt.Sprintf("%q and %q", a, b), func(t *testing.T) {
				m := portmap.Mapping{HostPort: 80, Protocol: "tcp", HostIP: a}
				o := portmap.Mapping{HostPort: 80, Protocol: "tcp", HostIP: b}
				require.Equal(t, rows[i][j] == 'x', m.Overlaps(o))

				otherPort, otherProtocol := o, o
				otherPort.HostPort, otherProtocol.Protocol = 81, "udp"
				require.False(t, m.Overlaps(otherPort))
				require.False(t, m.Overlaps(otherProtocol))
			})
		}
	}
}

func TestOverlapsLooksAtNothingElse(t *testing.T) {
	m := portmap.Mapping{Label: "a", HostPort: 80, ContainerPort: 1, Protocol: "tcp"}
	o := portmap.Mapping{Label: "b", HostPort: 80, ContainerPort: 2, Protocol: "TCP"}
	require.True(t, m.Overlaps(o))
	require.True(t, o.Overlaps(m))

	o.HostPort, o.ContainerPort = 81, 1
	require.False(t, m.Overlaps(o), "the same port of two sandboxes")
}

func TestFindConflict(t *testing.T) {
	tests := []struct {
		name          string
		wanted, taken string // ports as Parse reads them
		want          string
	}{
		{"nothing wanted", "", "80/tcp", ""},
		{"nothing taken", "80/tcp", "", ""},
		{"apart", "80/tcp 81/udp", "80/udp 81/tcp 82/tcp", ""},
		{"same", "80/tcp", "79/tcp 80/tcp", "||80>80/tcp ||80>80/tcp"},
		{"other address", "10.0.0.1:80/tcp", "10.0.0.2:80/tcp [::]:80/tcp", ""},
		{"wildcard taken", "10.0.0.1:80/tcp", "10.0.0.2:80/tcp 0.0.0.0:80/tcp", "|10.0.0.1|80>80/tcp |0.0.0.0|80>80/tcp"},
		{"wildcard wanted", "80/tcp", "[fd00::1]:80/tcp", "||80>80/tcp |fd00::1|80>80/tcp"},
		{
			"first wanted, though found last",
			"a=80/tcp b=81/tcp c=82/tcp", "x=82/tcp y=81/tcp z=80/tcp",
			"a||80>80/tcp z||80>80/tcp",
		},
		{
			"first taken of the first wanted",
			"a=70/tcp b=80/tcp", "x=10.0.0.1:80/tcp y=10.0.0.2:80/tcp",
			"b||80>80/tcp x|10.0.0.1|80>80/tcp",
		},
		{
			"second of a slot",
			"a=10.0.0.1:80/tcp b=10.0.0.2:80/tcp", "x=10.0.0.2:80/tcp",
			"b|10.0.0.2|80>80/tcp x|10.0.0.2|80>80/tcp",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w, o, found := portmap.FindConflict(parseAll(t, tt.wanted), parseAll(t, tt.taken))
			require.Equal(t, tt.want != "", found)
			if !found {
				require.Zero(t, w)
				require.Zero(t, o)
				return
			}
			require.Equal(t, tt.want, strings.Join(dump([]portmap.Mapping{w, o}), " "))
		})
	}
}

func parseAll(t testing.TB, list string) []portmap.Mapping {
	var all []portmap.Mapping
	for _, s := range strings.Fields(list) {
		p, err := portmap.Parse(s)
		require.NoError(t, err)
		mappings, err := portmap.Mappings([]portmap.Port{p}, portmap.Options{})
		require.NoError(t, err)
		all = append(all, mappings...)
	}
	return all
}

func TestConflictError(t *testing.T) {
	wanted := portmap.Mapping{Label: "http", HostPort: 8080, ContainerPort: 80, Protocol: "tcp", HostIP: "127.0.0.1"}
	taken := portmap.Mapping{HostPort: 8080, ContainerPort: 90, Protocol: "tcp"}
	tests := []struct {
		name string
		err  portmap.ConflictError
		want string
	}{
		{
			"two allocations", portmap.ConflictError{Mapping: wanted, Other: taken, ID: "a1", OtherID: "b2"},
			`publish tcp port 8080 on 127.0.0.1 ("http") for allocation "a1": host port conflict with tcp port 8080 on all addresses of allocation "b2"`,
		},
		{
			"unnamed against another", portmap.ConflictError{Mapping: taken, Other: wanted, OtherID: "b2"},
			`publish tcp port 8080 on all addresses: host port conflict with tcp port 8080 on 127.0.0.1 ("http") of allocation "b2"`,
		},
		{
			"one allocation, named twice", portmap.ConflictError{Mapping: wanted, Other: taken, ID: "a1", OtherID: "a1"},
			`publish tcp port 8080 on 127.0.0.1 ("http") for allocation "a1": host port conflict with tcp port 8080 on all addresses of the same allocation`,
		},
		{
			"one allocation, named once", portmap.ConflictError{Mapping: wanted, Other: taken, ID: "a1"},
			`publish tcp port 8080 on 127.0.0.1 ("http") for allocation "a1": host port conflict with tcp port 8080 on all addresses of the same allocation`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.EqualError(t, &tt.err, tt.want)
			err := fmt.Errorf("set up: %w", &tt.err)
			require.ErrorIs(t, err, portmap.ErrConflict)
			var conflict *portmap.ConflictError
			require.ErrorAs(t, err, &conflict)
			require.Equal(t, tt.err, *conflict)
		})
	}
}

// FuzzOverlaps checks mappings that Mappings would never make, too.
func FuzzOverlaps(f *testing.F) {
	f.Add("tcp", 80, "", "TCP", 80, "0.0.0.0")
	f.Add("tcp", 80, "::ffff:0.0.0.0", "tcp", 80, "10.0.0.1")
	f.Add("udp", 53, "fe80::1%eth0", "udp", 53, "fe80::1%eth1")
	f.Add("", -1, "nonsense", "", -1, "nonsense")
	f.Fuzz(func(t *testing.T, proto1 string, port1 int, ip1, proto2 string, port2 int, ip2 string) {
		m := portmap.Mapping{Label: "m", Protocol: proto1, HostPort: port1, HostIP: ip1}
		o := portmap.Mapping{Label: "o", Protocol: proto2, HostPort: port2, HostIP: ip2}
		require.True(t, m.Overlaps(m), "reflexive")
		require.Equal(t, m.Overlaps(o), o.Overlaps(m), "symmetric")
		if m.Overlaps(o) {
			m.HostIP = ""
			require.True(t, m.Overlaps(o), "still so on all addresses")
		}
		requireConflictAsNaive(t, []portmap.Mapping{m, o}, []portmap.Mapping{o, m})
	})
}

// requireConflictAsNaive compares FindConflict with two plain loops.
func requireConflictAsNaive(t *testing.T, wanted, taken []portmap.Mapping) {
	naive := func() (w, o portmap.Mapping, found bool) {
		for _, w := range wanted {
			for _, o := range taken {
				if w.Overlaps(o) {
					return w, o, true
				}
			}
		}
		return
	}
	wantW, wantO, wantFound := naive()
	w, o, found := portmap.FindConflict(wanted, taken)
	require.Equal(t, wantFound, found)
	require.Equal(t, wantW, w)
	require.Equal(t, wantO, o)
}

// One new allocation on a host that has 10,000 ports in use.
func BenchmarkFindConflict(b *testing.B) {
	taken := parseAll(b, "20000-29999")
	wanted := parseAll(b, "http=8080:80 dns=10.0.0.1:53 db=5432/tcp")
	for b.Loop() {
		if _, _, found := portmap.FindConflict(wanted, taken); found {
			b.Fatal("found a conflict")
		}
	}
}
