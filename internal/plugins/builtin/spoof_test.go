package builtin_test

import (
	"encoding/binary"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

func spoofChecked() object {
	return object{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0", "macspoofchk": true, "sourceGuard": false, "ipam": hostLocal("10.9.0.0/24")}
}

// spoofRules returns the rules of macspoofchk, without what differs between
// ADDs, and without comments that the reference plugin ignores.
func spoofRules(t *testing.T) string {
	t.Helper()
	text := output(t, "nft", "list", "ruleset", "bridge")
	text = regexp.MustCompile(`"veth\w+"`).ReplaceAllString(text, `"VETH"`)
	text = regexp.MustCompile(`saddr [0-9a-f:]+`).ReplaceAllString(text, "saddr MAC")
	return regexp.MustCompile(`(return|drop) comment ".*"`).ReplaceAllString(text, "$1")
}

// TestSpoofCheckLayout: the rules are those of the reference plugin. Each
// implementation's CHECK accepts, and its DEL removes, those of the other.
func TestSpoofCheckLayout(t *testing.T) {
	reference, native := runners(t)
	privhost.Require(t, "nft")
	conf := spoofChecked()
	a := sandboxed(t, "spoof")
	life := func(one, other *runner) (with string) {
		reference.t, native.t = t, t
		removeBridge(t)
		require.NoError(t, os.RemoveAll("/var/lib/cni/networks"))
		privhost.FlushRuleset(t)
		result := one.add(a, conf)
		with = spoofRules(t)
		awaitCarrier(t, a, conf)
		for _, r := range []*runner{one, other} {
			_, err := r.run("CHECK", a, withResult(t, conf, result))
			require.NoError(t, err, "%s CHECK of what %s made", r.name, one.name)
		}
		_, err := other.run("DEL", a, withResult(t, conf, result))
		require.NoError(t, err)
		left := spoofRules(t)
		require.NotContains(t, left, "cni-br-iface", "%s DEL of what %s made", other.name, one.name)
		require.Contains(t, left, "PREROUTING", "it is shared")
		_, err = native.run("DEL", a, withResult(t, conf, result))
		require.NoError(t, err)
		return with
	}
	want := life(reference, native)
	require.Contains(t, want, "cni-br-iface-spoof-eth0-mac")
	require.Equal(t, want, life(native, reference))
}

// TestSpoofCheckDrops: frames from another MAC of a sandbox are dropped, and no
// others.
func TestSpoofCheckDrops(t *testing.T) {
	_, native := runners(t)
	native.t = t
	defer os.RemoveAll("/var/lib/cni/networks")
	conf := spoofChecked()
	from, to := sandboxed(t, "from"), sandboxed(t, "to")
	var results []object
	for _, a := range []attachment{from, to} {
		results = append(results, native.add(a, conf))
		awaitCarrier(t, a, conf)
	}
	defer removeBridge(t)
	own, far := macOf(t, results[0]), macOf(t, results[1])
	spoofed := net.HardwareAddr{2, 0xbb, 0, 0, 0, 7}
	exchange := func(frames ...string) (received []string) {
		in, out := packetSocket(t, to), packetSocket(t, from)
		defer unix.Close(in)
		defer unix.Close(out)
		for _, text := range frames {
			source := own
			if strings.HasPrefix(text, "spoofed") {
				source = spoofed
			}
			_, err := unix.Write(out, frame(far, source, text))
			require.NoError(t, err)
		}
		buf := make([]byte, 100)
		for len(received) == 0 || received[len(received)-1] != frames[len(frames)-1] {
			n, err := unix.Read(in, buf)
			require.NoError(t, err)
			received = append(received, strings.TrimRight(string(buf[14:n]), "\x00"))
		}
		return received
	}
	require.Equal(t, []string{"own 1", "own 2"}, exchange("own 1", "spoofed", "own 2"))

	// Without the rules, all frames pass. Repair restores the rules.
	output(t, "nft", "delete", "table", "bridge", "nat")
	require.Equal(t, []string{"own 3", "spoofed", "own 4"}, exchange("own 3", "spoofed", "own 4"))
	_, err := native.run(sdk.Repair, from, withResult(t, conf, results[0]))
	require.NoError(t, err)
	require.Equal(t, []string{"own 5", "own 6"}, exchange("own 5", "spoofed", "own 6"))
	for i, a := range []attachment{from, to} {
		_, err := native.run("DEL", a, withResult(t, conf, results[i]))
		require.NoError(t, err)
	}
}

func macOf(t *testing.T, result object) net.HardwareAddr {
	t.Helper()
	links := result["interfaces"].([]any)
	mac, err := net.ParseMAC(links[len(links)-1].(object)["mac"].(string))
	require.NoError(t, err)
	return mac
}

// testProtocol is a local experimental EtherType (IEEE 802).
const testProtocol = 0x88b5

func frame(to, from net.HardwareAddr, text string) []byte {
	data := append(append([]byte{}, to...), from...)
	data = binary.BigEndian.AppendUint16(data, testProtocol)
	return append(data, text...)
}

// packetSocket sends and receives frames on the interface of an attachment.
func packetSocket(t *testing.T, a attachment) (fd int) {
	t.Helper()
	s, err := sandbox.Open(a.netns)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Do(func() error {
		eth0, err := net.InterfaceByName(a.ifName)
		if err != nil {
			return err
		}
		const protocol = testProtocol>>8 | testProtocol&0xff<<8
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol); err != nil {
			return err
		}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: eth0.Index})
	}))
	return fd
}

// TestSpoofCheckCheck: CHECK reports missing and additional rules, and Repair
// restores them.
func TestSpoofCheckCheck(t *testing.T) {
	_, native := runners(t)
	native.t = t
	privhost.Require(t, "nft")
	defer os.RemoveAll("/var/lib/cni/networks")
	privhost.FlushRuleset(t) // what another test has left, as the first change does
	conf := spoofChecked()
	a := sandboxed(t, "checked")
	conf = withResult(t, conf, native.add(a, conf))
	defer removeBridge(t)
	whole := spoofRules(t)
	for _, change := range []string{
		"flush ruleset", "flush table bridge nat", "flush chain bridge nat PREROUTING", "flush chain bridge nat cni-br-iface-checked-eth0",
		"flush chain bridge nat cni-br-iface-checked-eth0-mac", "add rule bridge nat cni-br-iface-checked-eth0-mac accept",
		"insert rule bridge nat cni-br-iface-checked-eth0-mac ether saddr 02:00:00:00:00:01 return",
	} {
		output(t, "nft", strings.Fields(change)...)
		_, err := native.run("CHECK", a, conf)
		require.ErrorContains(t, err, "macspoofchk", change)
		_, err = native.run(sdk.Repair, a, conf)
		require.NoError(t, err, change)
		_, err = native.run("CHECK", a, conf)
		require.NoError(t, err, change)
		require.Equal(t, whole, spoofRules(t), change)
	}
	_, err := native.run("DEL", a, conf)
	require.NoError(t, err)
}

// TestSpoofCheckOwners: DEL removes the rules of its attachment, also without
// the namespace or the result, and so does GC. A failed ADD leaves none. Rules
// of another instance stay.
func TestSpoofCheckOwners(t *testing.T) {
	_, native := runners(t)
	native.t = t
	privhost.Require(t, "nft")
	defer os.RemoveAll("/var/lib/cni/networks")
	defer removeBridge(t)
	conf := spoofChecked()
	a, b := sandboxed(t, "a"), sandboxed(t, "a-b")
	native.add(a, conf)
	native.add(b, conf)
	elsewhere := a
	elsewhere.netns = ""
	_, err := native.run("DEL", elsewhere, conf)
	require.NoError(t, err)
	require.NotContains(t, spoofRules(t), "cni-br-iface-a-eth0")
	require.Contains(t, spoofRules(t), "cni-br-iface-a-b-eth0")

	native.add(a, conf)
	valid := []object{{"containerID": "a", "ifname": "eth0"}}
	_, err = native.run("GC", attachment{}, with(with(conf, "cniVersion", "1.1.0"), "cni.dev/valid-attachments", valid))
	require.NoError(t, err)
	require.Contains(t, spoofRules(t), "cni-br-iface-a-eth0")
	require.NotContains(t, spoofRules(t), "cni-br-iface-a-b-eth0")

	_, err = native.run("ADD", attachment{id: "refused", netns: a.netns, ifName: a.ifName}, conf) // the interface exists
	require.Error(t, err)
	require.NotContains(t, spoofRules(t), "refused")

	_, other := moreRunners(t)
	other.exec.Instance = "0123456789abcdef"
	other.t = t
	before := spoofRules(t)
	same := sandboxed(t, "same")
	same.id = a.id
	_, err = other.run("ADD", same, with(conf, "name", "other"))
	require.ErrorContains(t, err, "another allocation owns the rules")
	_, err = other.run("DEL", same, with(conf, "name", "other"))
	require.NoError(t, err)
	require.Equal(t, before, spoofRules(t))
	_, err = native.run("DEL", a, conf)
	require.NoError(t, err)
}
