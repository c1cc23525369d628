package cost

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
)

// markerTarget is the address for which the sender asks with the frames that show the end of an ADD. The guard of bridge
// ports lets only frames with the sender's own addresses pass.
var markerTarget = [4]byte{10, 99, 0, 250}

const (
	arp           = "ARP"
	advertisement = "ICMPv6 136"
	report        = "ICMPv6 143" // of multicast groups
)

// TestFramesToOtherPorts: an ADD on a bridge sends nothing to other ports, however many there are. An address that was in
// use shortly before is announced, with one frame.
func TestFramesToOtherPorts(t *testing.T) {
	h := testbed.New(t, configurator.EngineNative)
	chain := testbed.Chain("bridge", testbed.Dual, "")
	chain[1]["capabilities"] = map[string]bool{"ips": true}
	h.Network("net", chain...)
	var all []configurator.Allocation
	present := map[string]bool{} // whether a MAC is that of a container or of the host
	setUp := func(id string, ips ...string) configurator.Allocation {
		t.Helper()
		a := h.Alloc(id)
		a.IPs = ips
		for _, itf := range h.SetUp(a).Interfaces {
			present[itf.MAC] = itf.Sandbox != ""
		}
		all = append(all, a)
		return a
	}
	receiver, sender := setUp("receiver"), setUp("sender")
	from, request := socketIn(t, sender.Netns, unix.ETH_P_ARP), arpRequest(t, sender.Netns)
	frames := func(id string, ips ...string) map[string]int {
		t.Helper()
		to, others := socketIn(t, receiver.Netns, unix.ETH_P_ALL), maps.Clone(present)
		setUp(id, ips...)
		frames := map[string]int{}
		for range sendMarkers(t, from, request) {
			for !receive(t, to, others, frames) {
			}
		}
		require.NoError(t, unix.Close(to))
		return frames
	}
	require.Empty(t, frames("first"))
	for n := range 20 {
		setUp(fmt.Sprint("other", n))
	}
	former := h.Alloc("former")
	former.IPs = []string{"10.99.0.177/24", "fd00:99::177/64"}
	h.SetUp(former)
	h.TearDown(former)
	require.Empty(t, frames("added"))
	require.Empty(t, frames("requested", "10.99.0.200/24", "fd00:99::200/64"))
	require.Equal(t, map[string]int{arp: 1}, frames("reuses-v4", "10.99.0.177/24", "fd00:99::201/64"))
	require.Equal(t, map[string]int{advertisement: 1}, frames("reuses-v6", "10.99.0.201/24", "fd00:99::177/64"))
	h.TearDown(all...)
}

// socketIn opens a packet socket for the frames of a type through eth0 of a network namespace.
func socketIn(t *testing.T, netns string, kind uint16) (fd int) {
	t.Helper()
	testbed.Within(t, netns, func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		order := binary.BigEndian.AppendUint16(nil, kind)
		protocol := binary.NativeEndian.Uint16(order)
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(protocol)); err != nil {
			return err
		}
		limit := unix.NsecToTimeval(int64(10 * time.Second))
		return errors.Join(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: link.Index}),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	})
	return fd
}

// sendMarkers sends a frame to all ports from every processor, and returns how many. Each processor passes on its
// frames in order, so whatever was sent before has arrived with the last of them.
func sendMarkers(t *testing.T, fd int, frame []byte) (n int) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var usual unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &usual))
	defer func() { require.NoError(t, unix.SchedSetaffinity(0, &usual)) }()
	for cpu := range 64 * len(usual) {
		if usual.IsSet(cpu) {
			var one unix.CPUSet
			one.Set(cpu)
			require.NoError(t, unix.SchedSetaffinity(0, &one))
			_, err := unix.Write(fd, frame)
			require.NoError(t, err)
			n++
		}
	}
	return n
}

// arpRequest returns a request for markerTarget from eth0 of a network namespace (RFC 826).
func arpRequest(t *testing.T, netns string) []byte {
	t.Helper()
	var frame []byte
	testbed.Within(t, netns, func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		addresses, err := link.Addrs()
		if err != nil {
			return err
		}
		frame = append([]byte("\xff\xff\xff\xff\xff\xff"), link.HardwareAddr...)
		frame = append(frame, "\x08\x06\x00\x01\x08\x00\x06\x04\x00\x01"...)
		frame = append(append(frame, link.HardwareAddr...), addresses[0].(*net.IPNet).IP.To4()...)
		frame = append(append(frame, 0, 0, 0, 0, 0, 0), markerTarget[:]...)
		return nil
	})
	require.Len(t, frame, 14+28)
	return frame
}

// receive reads a frame that arrived, and counts it by its kind if it was sent to several ports, and not by one of the
// others. It returns whether the frame is a marker.
func receive(t *testing.T, fd int, others map[string]bool, frames map[string]int) (isMarker bool) {
	t.Helper()
	frame := make([]byte, 2048)
	_, from, err := unix.Recvfrom(fd, frame, 0)
	require.NoError(t, err, "the frame of the test has not arrived")
	if link, ok := from.(*unix.SockaddrLinklayer); !ok || link.Pkttype == unix.PACKET_OUTGOING || frame[0]&1 == 0 {
		return false
	}
	kind := kindOf(frame)
	if kind == arp && [4]byte(frame[14+24:]) == markerTarget {
		return true
	}
	container, known := others[net.HardwareAddr(frame[6:12]).String()]
	if !container && !(known && kind == report) { // timers make the host report its groups
		frames[kind]++
	}
	return false
}

// kindOf returns what a frame has: ARP, a type of ICMPv6, also behind the options of multicast reports, or another protocol.
func kindOf(frame []byte) string {
	const options = 8
	protocol, packet := binary.BigEndian.Uint16(frame[12:]), frame[14:]
	switch {
	case protocol == unix.ETH_P_ARP:
		return arp
	case protocol == unix.ETH_P_IPV6 && packet[6] == unix.IPPROTO_ICMPV6:
		return fmt.Sprint("ICMPv6 ", packet[40])
	case protocol == unix.ETH_P_IPV6 && packet[6] == unix.IPPROTO_HOPOPTS && packet[40] == unix.IPPROTO_ICMPV6:
		return fmt.Sprint("ICMPv6 ", packet[40+options])
	}
	return fmt.Sprintf("protocol %#04x", protocol)
}
