// Package kernels tests what needs a kernel with more than many machines have: SCTP sockets, VRFs,
// dummy links, IPVS and bridges that filter VLANs. make kernels runs it on such kernels.
package kernels

import (
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/internal/testing/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m, nil)) }

// needsLink skips a test if the kernel has no links of a kind.
func needsLink(t *testing.T, link netlink.Link) {
	t.Helper()
	err := netlink.LinkAdd(link)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	skip.UnlessKernel(t, err == nil, "links of type %s: %v", link.Type(), err)
}
