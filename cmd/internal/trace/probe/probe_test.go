package probe

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

// childVariable makes this program send a probe without an answer.
const childVariable = "PROBE_TEST_NETNS"

func TestMain(m *testing.M) {
	if path := os.Getenv(childVariable); path != "" {
		os.Exit(lostProbe(path))
	}
	os.Exit(privhost.Main(m))
}

// lostProbe sends a probe to an address behind a link without neighbours.
func lostProbe(path string) int {
	inside, err := sandbox.Open(path)
	if err == nil {
		_, err = Send(context.Background(), Options{
			Protocol: unix.IPPROTO_TCP, From: netip.MustParseAddr("192.0.2.7"), Link: "up0", Host: netip.MustParseAddrPort("172.16.5.200:8080"),
			To: netip.MustParseAddr("172.16.5.200"), Inside: inside, Wait: time.Hour,
		})
	}
	if err != nil {
		println(err.Error())
	}
	return 1
}

// traces lists what a probe makes in the network namespace of the calling thread.
func traces(t *testing.T, inside *sandbox.Sandbox) (list []string) {
	t.Helper()
	look := func() error {
		tables, err := exec.Command("nft", "list", "tables").Output()
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(tables)) {
			if strings.Contains(line, "allocnet_trace") {
				list = append(list, "table")
			}
		}
		links, err := net.Interfaces()
		for _, link := range links {
			if strings.HasPrefix(link.Name, "allocnettr") {
				list = append(list, "tap")
			}
		}
		return err
	}
	require.NoError(t, look())
	require.NoError(t, inside.Do(look))
	return list
}

// TestKilled: the kernel removes everything of a probe whose process is killed.
func TestKilled(t *testing.T) {
	privhost.Require(t, "nft", "ip")
	inside, err := sandbox.Create("probe")
	require.NoError(t, err)
	defer func() { require.NoError(t, inside.Destroy()) }()
	for _, command := range []string{
		"ip link add up0 type veth peer name up1", "ip link set up0 up", "ip link set up1 up", "ip addr add 172.16.5.1/24 dev up0", "ip route add default via 172.16.5.9",
	} {
		words := strings.Fields(command)
		out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		require.NoError(t, err, "%s: %s", command, out)
	}
	defer func() { require.NoError(t, exec.Command("ip", "link", "del", "up0").Run()) }()
	self, err := os.Executable()
	require.NoError(t, err)
	child := exec.Command(self)
	child.Env = append(os.Environ(), childVariable+"="+inside.Path())
	child.Stderr = os.Stderr
	require.NoError(t, child.Start())
	require.Eventually(t, func() bool { return len(traces(t, inside)) == 3 }, time.Minute, 10*time.Millisecond, "two tables and a tap")
	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
	require.Empty(t, traces(t, inside))
}

// TestLost: if messages of the kernel do not fit into the buffer, the result says so. Send
// returns, also if the message about the end of the table is among them.
func TestLost(t *testing.T) {
	privhost.Require(t, "nft", "ip")
	defer func(before int) { traceBuffer = before }(traceBuffer)
	traceBuffer = 1 // the kernel makes it larger, but not large enough
	inside, err := sandbox.Create("probe")
	require.NoError(t, err)
	defer func() { require.NoError(t, inside.Destroy()) }()
	for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		result, err := Send(t.Context(), Options{
			Protocol: protocol, From: netip.MustParseAddr("127.0.0.1"), Host: netip.MustParseAddrPort("127.0.0.1:8080"),
			To: netip.MustParseAddr("127.0.0.1"), Inside: inside, Wait: time.Millisecond,
		})
		require.NoError(t, err)
		require.True(t, result.Lost)
	}
	require.Empty(t, traces(t, inside))
}

// attribute returns a netlink attribute.
func attribute(kind uint16, value []byte) []byte {
	data := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	data = append(binary.NativeEndian.AppendUint16(data, kind), value...)
	return append(data, make([]byte, -len(data)&3)...)
}

// TestManyAnswers: an allocation that answers without end fills no memory.
func TestManyAnswers(t *testing.T) {
	id := newIdentity(unix.IPPROTO_TCP)
	o := &observer{id: id, seen: newSighting(&Options{Protocol: id.protocol}), open: map[uint32]*Pass{}, hooks: map[Kind]string{}}
	from := netip.MustParseAddrPort("192.0.2.7:50000")
	segment := id.segment(from, from, flagSYN)
	for n := range uint32(4 * maxPasses) {
		message := append([]byte{unix.NFPROTO_IPV4, 0, 0, 0}, attribute(traceID, binary.BigEndian.AppendUint32(nil, n))...)
		o.trace(append(message, attribute(traceTransport, segment)...))
		if n%2 == 0 { // the others have no end
			o.trace(append(message, append(attribute(traceType, []byte{0, 0, 0, tracePolicy}), attribute(tracePolicyAttr, []byte{0, 0, 0, 1})...)...))
		}
		require.Equal(t, n >= maxPasses, o.lost)
	}
	require.Len(t, o.passes, maxPasses/2)
	require.Len(t, o.open, maxPasses/2)
}

// TestSegment reads back what is sent, and checks sums.
func TestSegment(t *testing.T) {
	for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		for _, addresses := range [][2]string{{"192.0.2.7:50000", "192.0.2.1:80"}, {"[2001:db8::7]:50000", "[2001:db8::1]:80"}} {
			id := newIdentity(protocol)
			from, to := netip.MustParseAddrPort(addresses[0]), netip.MustParseAddrPort(addresses[1])
			segment := id.segment(from, to, flagSYN)
			packet := datagram(from.Addr(), to.Addr(), protocol, segment)
			p := parse(packet[:len(packet)-len(segment)], segment)
			require.Equal(t, from, p.Source)
			require.Equal(t, to, p.Destination)
			kind, is := id.kindOf(segment)
			require.True(t, is)
			require.Equal(t, Request, kind)
			_, is = newIdentity(protocol).kindOf(segment)
			require.False(t, is, "of another probe")
			pseudo := append(append(from.Addr().AsSlice(), to.Addr().AsSlice()...), 0, 0, 0, byte(len(segment)), 0, 0, 0, protocol)
			require.Zero(t, checksum(append(pseudo, segment...)))
			if from.Addr().Is4() {
				require.Zero(t, checksum(packet[:20]))
			}
		}
	}
	id := newIdentity(unix.IPPROTO_TCP)
	reset := id.segment(netip.MustParseAddrPort("192.0.2.7:50000"), netip.MustParseAddrPort("192.0.2.1:80"), flagRST)
	kind, is := id.kindOf(reset)
	require.True(t, is)
	require.Equal(t, Reset, kind)
}

// FuzzDecode: no message makes the reader fail.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 8, 0, 6, 0, 0, 0, 0, 1})
	f.Fuzz(func(_ *testing.T, payload []byte) {
		m := decode(payload)
		parse(m.network, m.transport)
		newIdentity(unix.IPPROTO_TCP).kindOf(m.transport)
	})
}
