package policy

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// TestHostIsNotAnAddress: packets from another machine are not from the host, whatever their source is, also
// through a host port. What the host sends reaches an isolated allocation.
func TestHostIsNotAnAddress(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
			h.connectOutside()
			h.Network("net", policed(main, testbed.Dual)...)
			isolated, free := h.Alloc("isolated"), h.Alloc("free")
			isolated.Policy = mustPolicy(t, `{"presets":["isolated"]}`)
			for i, a := range []*configurator.Allocation{&free, &isolated} {
				a.Ports = []portmap.Port{{Value: 8080 + i, To: 99, Protocols: []string{"udp", "tcp"}}}
				h.InNew(*a, func() {
					testbed.SetSysctls(t, a.Netns, testbed.Quick)
					testbed.Serve(t, a.Netns, "tcp", 99, a.ID)
				})
				s := h.SetUp(*a)
				for _, address := range []string{s.Address, s.AddressIPv6} {
					testbed.RequireAnswer(t, "", "tcp", testbed.At(netip.MustParseAddr(address), 99), a.ID)
				}
				for _, address := range []netip.Prefix{testhost.Host4, testhost.Host6} {
					testbed.RequireAnswer(t, "", "tcp", testbed.HostPort(address, 8080+i), a.ID)
				}
				inside, at := netip.MustParseAddr(s.AddressIPv6), sniffer(t, a.Netns)
				for _, source := range []netip.Addr{testhost.Host6.Addr(), testhost.Host6b.Addr(), testhost.Outside6.Addr()} {
					for _, to := range []netip.AddrPort{
						netip.AddrPortFrom(inside, 99), netip.AddrPortFrom(testhost.Host6.Addr(), uint16(8080+i)),
					} {
						token := rand.Text()
						requirePacket(t, a.ID == "free", fmt.Sprintf("to %s of %s from %s", to, a.ID, source), token, at, func() {
							sendPackets(t, h.Outside.Path(), to.Addr(), packet(source, to.Addr(), unix.IPPROTO_UDP,
								udpPacket(netip.AddrPortFrom(source, 5000), to, []byte(token))))
						})
					}
				}
			}
			const port = 8081
			_, err := h.Update(h.Context(), "isolated", configurator.Change{Policy: mustPolicy(t, `{"ingress":{"rules":[{"action":"deny","peers":[{"name":"host"}]}]}}`)})
			require.NoError(t, err)
			for _, address := range []netip.Prefix{testhost.Host4, testhost.Host6} {
				testbed.RequireSilence(t, "", "tcp", testbed.HostPort(address, port))
				testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(address, port), "isolated")
				testbed.RequireAnswer(t, free.Netns, "tcp", testbed.HostPort(address, port), "isolated")
			}
			h.TearDown(isolated, free)
		})
	}
}
