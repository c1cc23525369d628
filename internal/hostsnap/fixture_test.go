package hostsnap

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func take(t *testing.T, opts Options) Snapshot {
	t.Helper()
	snapshot, err := Take(opts)
	require.NoError(t, err)
	return snapshot
}

func lines(list ...string) string { return strings.Join(list, "\n") + "\n" }

func mac(text string) net.HardwareAddr {
	address, err := net.ParseMAC(text)
	if err != nil {
		panic(err)
	}
	return address
}

func network(t *testing.T, text string) *net.IPNet {
	t.Helper()
	_, network, err := net.ParseCIDR(text)
	require.NoError(t, err)
	return network
}

func linkAttrs(name, address string) netlink.LinkAttrs {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = name, mac(address)
	return attrs
}

func linkByName(t *testing.T, name string) netlink.Link {
	t.Helper()
	link, err := netlink.LinkByName(name)
	require.NoError(t, err)
	return link
}

// addLink adds link, gives it addresses and brings it up.
func addLink(t *testing.T, link netlink.Link, addresses ...string) {
	t.Helper()
	require.NoError(t, netlink.LinkAdd(link))
	for _, text := range addresses {
		address, err := netlink.ParseAddr(text)
		require.NoError(t, err)
		require.NoError(t, netlink.AddrAdd(link, address))
	}
	require.NoError(t, netlink.LinkSetUp(link))
}

// iptables runs one command of iptables.
func iptables(t *testing.T, command string) {
	t.Helper()
	words := strings.Fields(command)
	privhost.Require(t, words[0])
	output, err := exec.Command(words[0], append([]string{"-w"}, words[1:]...)...).CombinedOutput()
	require.NoError(t, err, string(output))
}

// flushNftables removes all tables, including those of iptables, and the lock
// file of iptables.
func flushNftables(t *testing.T) {
	t.Helper()
	conn, err := nftables.New()
	require.NoError(t, err)
	conn.FlushRuleset()
	require.NoError(t, conn.Flush())
	require.NoError(t, os.RemoveAll("/run/xtables.lock"))
}

func write(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}
