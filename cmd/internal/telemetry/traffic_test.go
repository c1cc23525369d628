package telemetry

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// fakeLinks are links by their index.
type fakeLinks map[int]fakeLink

type fakeLink struct {
	owner string // the network; "" for none
	rtnl.Counters
}

func (f fakeLinks) Statistics() (map[int]rtnl.Counters, error) {
	if _, broken := f[-1]; broken {
		return nil, errors.New("broken")
	}
	all := map[int]rtnl.Counters{}
	for index, l := range f {
		all[index] = l.Counters
	}
	return all, nil
}

func (f fakeLinks) OwnerOf(index int) (names.Owner, bool, error) {
	o, ok := names.ParseOwner(names.Owner{Network: f[index].owner, ID: "a", IfName: "eth0"}.String())
	return o, ok && f[index].owner != "", nil
}

// TestTraffic: the sums only grow, while links come and go.
func TestTraffic(t *testing.T) {
	links := fakeLinks{2: {"blue", rtnl.Counters{TxBytes: 1000}}}
	long := strings.Repeat("long", 20)
	networks := []*conflist.Network{network(t, long, t.TempDir(), `"subnet":"10.1.0.0/24"`)}
	r := newRig(Options{Links: links, Networks: func() ([]*conflist.Network, []*conflist.FileError) { return networks, nil }})
	for _, step := range []struct {
		links fakeLinks
		want  string
	}{
		{fakeLinks{1: {}, 2: {"blue", rtnl.Counters{TxBytes: 1000}}}, "blue 0"},
		{fakeLinks{1: {}, 2: {"blue", rtnl.Counters{TxBytes: 1010}}}, "blue 10"},
		{fakeLinks{2: {"blue", rtnl.Counters{TxBytes: 1010}}, 3: {"blue", rtnl.Counters{TxBytes: 5}}}, "blue 15"},
		{fakeLinks{3: {"blue", rtnl.Counters{TxBytes: 6}}, 4: {"", rtnl.Counters{TxBytes: 99}}}, "blue 16"},
		{fakeLinks{3: {"blue", rtnl.Counters{TxBytes: 2}}, 4: {"red", rtnl.Counters{TxBytes: 99}}}, "blue 18, red 99"}, // 3 is another one, 4 got its owner late
		{fakeLinks{5: {long, rtnl.Counters{TxBytes: 1}}}, "blue 18, " + long + " 1, red 99"},
		{fakeLinks{-1: {}}, ""},
		{fakeLinks{}, "blue 18, " + long + " 1, red 99"},
	} {
		clear(links)
		maps.Copy(links, step.links)
		var got []string
		for _, line := range r.series(t, "network_receive_bytes_total") {
			line = strings.TrimPrefix(line, `network_receive_bytes_total{network="`)
			got = append(got, strings.Replace(line, `"} `, " ", 1))
		}
		require.Equal(t, step.want, strings.Join(got, ", "))
		r.add(hostTime)
	}
	links[1] = fakeLink{"green", rtnl.Counters{RxPackets: 1, TxPackets: 2, RxBytes: 3, TxBytes: 4, RxDropped: 5, TxDropped: 6}}
	var got []string
	for _, line := range r.series(t, "network_") {
		if strings.Contains(line, `"green"`) {
			got = append(got, line)
		}
	}
	require.Equal(t, []string{
		`network_receive_bytes_total{network="green"} 4`, `network_receive_packets_dropped_total{network="green"} 6`,
		`network_receive_packets_total{network="green"} 2`, `network_transmit_bytes_total{network="green"} 3`,
		`network_transmit_packets_dropped_total{network="green"} 5`, `network_transmit_packets_total{network="green"} 1`,
	}, got)
}

// TestTrafficHasFewLabels: the number of labels is bounded, and links that are gone are
// forgotten.
func TestTrafficHasFewLabels(t *testing.T) {
	links := fakeLinks{}
	r := newRig(Options{Links: links})
	for i := range 3 * maxNetworks {
		links[i] = fakeLink{owner: fmt.Sprint("net", i)}
	}
	require.Len(t, r.series(t, "network_receive_bytes_total"), maxNetworks+1)
	m := newHost(Options{Links: links}, r.clock.now, func(n string) string { return n })
	require.Len(t, m.meter.known, len(links))
	clear(links)
	require.NoError(t, m.meter.look())
	require.Empty(t, m.meter.known)
}
