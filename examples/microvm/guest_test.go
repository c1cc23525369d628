package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// guest is a virtual machine without the machine: a process that reads and writes the
// frames of the tap. It answers ARP and neighbour solicitations for its addresses and
// returns UDP datagrams. Once its gateway has answered ARP and a ping, it says so.
type guest struct {
	tap              int
	mac              net.HardwareAddr
	address, gateway [4]byte
	address6         [16]byte
	connected        bool
}

// runGuest runs a guest with the environment that the program gives to a monitor.
func runGuest() error {
	mac, err := net.ParseMAC(os.Getenv("MAC"))
	if err != nil {
		return err
	}
	address, err := netip.ParsePrefix(os.Getenv("ADDRESS"))
	if err != nil {
		return err
	}
	gateway, err := netip.ParseAddr(os.Getenv("GATEWAY"))
	if err != nil {
		return err
	}
	address6, err := netip.ParsePrefix(os.Getenv("ADDRESS_IPV6"))
	if err != nil {
		return err
	}
	g := &guest{mac: mac, address: address.Addr().As4(), gateway: gateway.As4(), address6: address6.Addr().As16()}
	if g.tap, err = openTap(os.Getenv("TAP")); err != nil {
		return err
	}
	frame := make([]byte, 65536)
	for {
		if err := g.await(); err != nil {
			return err
		}
		n, err := unix.Read(g.tap, frame)
		if err != nil {
			return err
		}
		if answer := g.answer(frame[:n]); answer != nil {
			if _, err := unix.Write(g.tap, answer); err != nil {
				return err
			}
		}
	}
}

// await waits for a frame. Until the gateway has answered, it asks for it again and
// again: the kernel drops frames for a tap that has only just been opened.
func (g *guest) await() error {
	for {
		if !g.connected {
			if err := g.askForGateway(); err != nil {
				return err
			}
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(g.tap), Events: unix.POLLIN}}, 50)
		if n > 0 || err != nil && err != unix.EINTR {
			return err
		}
	}
}

// openTap opens an existing tap, as a monitor does.
func openTap(name string) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return -1, err
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	return fd, unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
}

// The offsets of the fields of Ethernet, ARP and IPv4 that the guest uses.
const (
	etherType  = 12
	network    = 14 // the header after that of Ethernet
	arpOp      = network + 6
	arpSender  = network + 8
	arpTarget  = network + 18
	ipProtocol = network + 9
	ipSource   = network + 12
	ipTarget   = network + 16
	transport  = network + 20 // the header after one of IPv4 without options
)

// askForGateway sends an ARP request.
func (g *guest) askForGateway() error {
	frame := g.frame(net.HardwareAddr{255, 255, 255, 255, 255, 255}, unix.ETH_P_ARP)
	frame = append(frame, 0, 1, 8, 0, 6, 4, 0, 1)
	frame = append(append(frame, g.mac...), g.address[:]...)
	frame = append(append(frame, make([]byte, 6)...), g.gateway[:]...)
	_, err := unix.Write(g.tap, frame)
	return err
}

// frame returns the header of a frame.
func (g *guest) frame(to net.HardwareAddr, protocol uint16) []byte {
	return binary.BigEndian.AppendUint16(append(bytes.Clone(to), g.mac...), protocol)
}

// answer returns the answer to a frame, or nil.
func (g *guest) answer(frame []byte) []byte {
	if len(frame) < arpTarget+10 {
		return nil
	}
	sender := net.HardwareAddr(bytes.Clone(frame[6:12]))
	switch {
	case binary.BigEndian.Uint16(frame[etherType:]) == unix.ETH_P_ARP:
		return g.answerARP(sender, frame)
	case binary.BigEndian.Uint16(frame[etherType:]) == unix.ETH_P_IPV6:
		return g.answerIPv6(sender, frame)
	case binary.BigEndian.Uint16(frame[etherType:]) != unix.ETH_P_IP || [4]byte(frame[ipTarget:]) != g.address || len(frame) < transport+8:
		return nil
	case frame[ipProtocol] == unix.IPPROTO_UDP:
		return g.answerUDP(sender, frame)
	case frame[ipProtocol] == unix.IPPROTO_ICMP && frame[transport] == 0 && [4]byte(frame[ipSource:]) == g.gateway && !g.connected:
		g.connected = true
		fmt.Println("the gateway answers")
	}
	return nil
}

func (g *guest) answerARP(sender net.HardwareAddr, frame []byte) []byte {
	switch {
	case frame[arpOp+1] == 2 && [4]byte(frame[arpSender+6:]) == g.gateway:
		return g.ping(sender)
	case frame[arpOp+1] != 1 || [4]byte(frame[arpTarget+6:]) != g.address:
		return nil
	}
	reply := append(g.frame(sender, unix.ETH_P_ARP), 0, 1, 8, 0, 6, 4, 0, 2)
	reply = append(append(reply, g.mac...), g.address[:]...)
	return append(reply, frame[arpSender:arpTarget]...)
}

// ping returns an echo request for the gateway.
func (g *guest) ping(to net.HardwareAddr) []byte {
	echo := []byte{8, 0, 0, 0, 0, 1, 0, 1}
	binary.BigEndian.PutUint16(echo[2:], ^sum(echo))
	header := []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, unix.IPPROTO_ICMP, 0, 0}
	header = append(append(header, g.address[:]...), g.gateway[:]...)
	binary.BigEndian.PutUint16(header[10:], ^sum(header))
	return append(append(g.frame(to, unix.ETH_P_IP), header...), echo...)
}

// answerUDP returns a datagram to its sender.
func (g *guest) answerUDP(sender net.HardwareAddr, frame []byte) []byte {
	length := binary.BigEndian.Uint16(frame[transport+4:])
	datagram := frame[transport : transport+int(length)]
	pseudo := append(bytes.Clone(frame[ipSource:transport]), 0, unix.IPPROTO_UDP, byte(length>>8), byte(length))
	if total := sum(append(pseudo, datagram...)); total != 0xffff {
		log.Printf("a datagram has a wrong checksum: %x", total)
		return nil
	}
	reply := append(g.frame(sender, unix.ETH_P_IP), frame[network:ipSource]...) // the checksum of swapped addresses is the same
	reply = append(append(reply, frame[ipTarget:transport]...), frame[ipSource:ipTarget]...)
	reply = append(append(reply, datagram[2:4]...), datagram[0:2]...)
	return append(append(reply, datagram[4:6]...), append([]byte{0, 0}, datagram[8:]...)...)
}

// The offsets of the fields of IPv6.
const (
	nextHeader = network + 6
	ip6Source  = network + 8
	ip6Target  = network + 24
	transport6 = network + 40
)

func (g *guest) answerIPv6(sender net.HardwareAddr, frame []byte) []byte {
	if len(frame) < transport6+8 {
		return nil
	}
	payload := frame[transport6:]
	switch {
	case frame[nextHeader] == unix.IPPROTO_ICMPV6 && payload[0] == 135 && bytes.HasPrefix(payload[8:], g.address6[:]):
		advertisement := append([]byte{136, 0, 0, 0, 0x60, 0, 0, 0}, g.address6[:]...)
		advertisement = append(append(advertisement, 2, 1), g.mac...)
		return g.packet6(sender, frame[ip6Source:ip6Target], unix.IPPROTO_ICMPV6, advertisement, 2)
	case frame[nextHeader] == unix.IPPROTO_UDP && [16]byte(frame[ip6Target:]) == g.address6:
		datagram := append(bytes.Clone(payload[2:4]), payload[0:2]...)
		datagram = append(append(datagram, payload[4:6]...), append([]byte{0, 0}, payload[8:]...)...)
		return g.packet6(sender, frame[ip6Source:ip6Target], unix.IPPROTO_UDP, datagram, 6)
	}
	return nil
}

// packet6 returns a frame with an IPv6 packet. checksum is the offset of the checksum in
// the payload.
func (g *guest) packet6(to net.HardwareAddr, target []byte, next byte, payload []byte, checksum int) []byte {
	addresses := append(bytes.Clone(g.address6[:]), target...)
	length := byte(len(payload)) // the packets of the test are short
	binary.BigEndian.PutUint16(payload[checksum:], ^sum(append(append(bytes.Clone(addresses), 0, 0, 0, length, 0, 0, 0, next), payload...)))
	frame := append(g.frame(to, unix.ETH_P_IPV6), 0x60, 0, 0, 0, 0, length, next, 255)
	return append(append(frame, addresses...), payload...)
}

// sum returns the sum of the Internet checksum.
func sum(data []byte) uint16 {
	var total uint32
	for i, b := range data {
		total += uint32(b) << (8 * (1 - i%2))
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}
