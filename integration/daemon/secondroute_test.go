package daemon

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
)

// TestDaemonSecondDefaultRoute: a runtime attaches a container to two networks with a default route
// each, in either order. The host ports of both answer every time, and after one DEL those of the
// other.
func TestDaemonSecondDefaultRoute(t *testing.T) {
	r := newCNI(t)
	back := testbed.Chain("bridge", testbed.Families{V4: "10.98.0.0/24", V6: "fd00:98::/64"}, "")
	back[1]["bridge"] = "br-back"
	r.h.Network("back", back...)
	r.list("second", "1.0.0", r.ours("delegate", "back"))
	modes[0].turn(r)
	for turn, networks := range [][2]string{{"runtime", "second"}, {"second", "runtime"}} {
		netns := r.h.netns(fmt.Sprint("two", turn))
		testbed.Serve(t, netns, "tcp", 80, "web")
		answers := func(of ...int) {
			t.Helper()
			for range 8 {
				for _, i := range of {
					for _, host := range []string{testbed.HostPort(testhost.Host4, 8080+i), testbed.HostPort(testhost.Host6, 8080+i)} {
						_, err := testbed.Ask(testbed.Timeout, r.h.Outside.Path(), "tcp", host)
						require.NoError(t, err, "network %q at %s", networks[i], host)
					}
				}
			}
		}
		name := func(i int) string { return fmt.Sprint("CNI_IFNAME=eth", i) }
		for i, network := range networks {
			r.result(network, netns, name(i), portMapping(8080+i, 80))
		}
		answers(0, 1)
		for i, network := range networks {
			r.ok("check", network, netns, name(i), portMapping(8080+i, 80))
		}
		r.ok("del", networks[turn], netns, name(turn))
		answers(1 - turn)
		r.ok("del", networks[1-turn], netns, name(1-turn))
		require.Eventually(t, func() (gone bool) { // with the links, after the answer
			testbed.Within(t, netns, func() error {
				rules, err := testbed.Output("ip", "rule")
				gone = !strings.Contains(rules, "from 10.9")
				return err
			})
			return gone
		}, 20*time.Second, 10*time.Millisecond, "no rule is left")
	}
	require.Empty(t, r.h.phases())
}
