package cost

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
)

// mostFrames is how many frames about addresses an ADD on a bridge may send to the other ports, for each family. It may
// only become less.
var mostFrames = map[string]int{"IPv4": 1, "IPv6": 2}

// markerTarget is the address for which the sender asks with the frames that show the end of an ADD. The guard of bridge
// ports lets only frames with the sender's own addresses pass.
var markerTarget = [4]byte{10, 99, 0, 250}

// TestFramesToOtherPorts: an ADD on a bridge sends no more frames about its addresses to other ports than it did,
// however many there are. Neighbour discovery of the kernel itself, such as reports of multicast groups, is not counted:
// timers send it.
func TestFramesToOtherPorts(t *testing.T) {
	h := testbed.New(t, configurator.EngineNative)
	h.Network("net", testbed.Chain("bridge", testbed.Dual, "")...)
	receiver, sender := h.Alloc("receiver"), h.Alloc("sender")
	h.SetUp(receiver) // a host with one network needs no choice
	h.SetUp(sender)
	all := []configurator.Allocation{receiver, sender}
	from, request := socketIn(t, sender.Netns, unix.ETH_P_ARP), arpRequest(t, sender.Netns)
	for i, others := range []int{0, 20} {
		for n := range others {
			a := h.Alloc(fmt.Sprint("other", n))
			h.SetUp(a)
			all = append(all, a)
		}
		to := socketIn(t, receiver.Netns, unix.ETH_P_ALL)
		added := h.Alloc(fmt.Sprint("added", i))
		h.SetUp(added)
		all = append(all, added)
		frames := map[string]int{}
		for range sendMarkers(t, from, request) {
			for !receive(t, to, frames) {
			}
		}
		t.Logf("%d others: %v", others, frames)
		for family, most := range mostFrames {
			require.LessOrEqual(t, frames[family], most, "%s, %d others", family, others)
		}
		require.NoError(t, unix.Close(to))
	}
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

// receive reads a frame that arrived, and counts it by its family if it announces an address to all ports. It
// returns whether the frame is a marker.
func receive(t *testing.T, fd int, frames map[string]int) (isMarker bool) {
	t.Helper()
	const neighbourAdvertisement = 136
	frame := make([]byte, 2048)
	_, from, err := unix.Recvfrom(fd, frame, 0)
	require.NoError(t, err, "the frame of the test has not arrived")
	if link, ok := from.(*unix.SockaddrLinklayer); !ok || link.Pkttype == unix.PACKET_OUTGOING || frame[0]&1 == 0 {
		return false
	}
	switch kind := binary.BigEndian.Uint16(frame[12:]); {
	case kind == unix.ETH_P_ARP && [4]byte(frame[14+24:]) == markerTarget:
		return true
	case kind == unix.ETH_P_ARP:
		frames["IPv4"]++
	case kind == unix.ETH_P_IPV6 && frame[14+6] == unix.IPPROTO_ICMPV6 && frame[14+40] == neighbourAdvertisement:
		frames["IPv6"]++
	}
	return false
}
