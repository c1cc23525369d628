package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tap injects packets as if a link of the host had received them. They are written to a
// temporary tap, whose traffic control redirects them to the receiving side of the link.
// The kernel removes the tap, with all that, when the file is closed.
type tap struct {
	o    *Options
	id   identity
	from netip.AddrPort
	file *os.File
	mac  net.HardwareAddr
}

func newTap(o *Options, id identity) (_ *tap, err error) {
	const device = "/dev/net/tun"
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, unsupported("open "+device, err)
	}
	const ephemeral = 49152 // the first port that clients choose
	port := ephemeral + binary.NativeEndian.Uint16(id.cookie[8:])%(65535-ephemeral)
	t := &tap{o: o, id: id, from: netip.AddrPortFrom(o.From, port), file: os.NewFile(uintptr(fd), device)}
	if err := t.redirect(fd); err != nil {
		return nil, errors.Join(unsupported("make a temporary tap", err), t.close())
	}
	return t, nil
}

// redirect makes the tap, and lets it pass what is written to it to the link.
func (t *tap) redirect(fd int) error {
	request, err := unix.NewIfreq("allocnettr%d")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return err
	}
	// It must not get addresses, nor send anything by itself.
	sysctl := "/proc/sys/net/ipv6/conf/" + request.Name() + "/disable_ipv6"
	if err := os.WriteFile(sysctl, []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	link, err := netlink.LinkByName(request.Name())
	if err != nil {
		return err
	}
	to, err := netlink.LinkByName(t.o.Link)
	if err != nil {
		return fmt.Errorf("link %s: %w", t.o.Link, err)
	}
	t.mac = link.Attrs().HardwareAddr
	index := link.Attrs().Index
	qdisc := netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
	action := netlink.NewMirredAction(to.Attrs().Index)
	action.MirredAction = netlink.TCA_INGRESS_REDIR
	filter := netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Priority: 1, Protocol: unix.ETH_P_ALL}
	if err := netlink.QdiscAdd(&netlink.GenericQdisc{QdiscAttrs: qdisc, QdiscType: "clsact"}); err != nil {
		return fmt.Errorf("add clsact: %w", err)
	}
	if err := netlink.FilterAdd(&netlink.U32{FilterAttrs: filter, Actions: []netlink.Action{action}}); err != nil {
		return fmt.Errorf("add a redirection: %w", err)
	}
	return netlink.LinkSetUp(link)
}

func (t *tap) source() netip.AddrPort { return t.from }

func (t *tap) send(flags uint8) (refused, err error) {
	packet := datagram(t.from.Addr(), t.o.Host.Addr(), t.id.protocol, t.id.segment(t.from, t.o.Host, flags))
	kind := uint16(unix.ETH_P_IP)
	if t.from.Addr().Is6() {
		kind = unix.ETH_P_IPV6
	}
	// The kernel compares the destination with the address of the tap, not of the link.
	source := net.HardwareAddr{0x02, 0, 0, 0, 0, 1}
	frame := binary.BigEndian.AppendUint16(append(append([]byte{}, t.mac...), source...), kind)
	_, err = t.file.Write(append(frame, packet...))
	return nil, err
}

func (t *tap) close() error { return t.file.Close() }
