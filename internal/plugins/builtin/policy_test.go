package builtin_test

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/policy"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/policystate"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/sandbox"
)

// policed returns the configuration of the plugin policy for an allocation. policy is "" for none.
func policed(conf object, id, policy string) object {
	request := object{"allocation": id, "labels": object{"app": id}}
	if policy != "" {
		request["policy"] = object{"presets": []any{policy}}
	}
	return object{"cniVersion": "1.0.0", "name": conf["name"], "type": "policy", "runtimeConfig": object{"policy": request}}
}

// TestPolicyLife: what ADD makes for an allocation with a policy and without one, CHECK compares,
// Repair restores, and DEL removes. Another allocation keeps its own.
func TestPolicyLife(t *testing.T) {
	for _, conf := range []object{guardedBridge(), guardedLinks("net")} {
		for i, policy := range []string{"", "isolated", "no-metadata"} {
			t.Run(conf["type"].(string)+" "+policy, func(t *testing.T) {
				skip.InTurn(t, i, 3)
				testPolicyLife(t, conf, policy)
			})
		}
	}
}

func testPolicyLife(t *testing.T, conf object, policy string) {
	g := newGuardTest(t)
	dir := t.TempDir()
	g.native.exec.Host.Policies = policystate.New(dir)
	other, otherResult, _ := g.add("other", conf)
	t.Cleanup(func() { _, _ = g.native.run("DEL", other, withResult(t, conf, otherResult)) })
	require.NoError(t, g.run("ADD", other, policed(conf, "other", "isolated"), otherResult))

	a, result, _ := g.add("a", conf)
	t.Cleanup(func() { _, _ = g.native.run("DEL", a, withResult(t, conf, result)) })
	before, members := policyTables(t), files(t, dir)
	own := policed(conf, "a", policy)
	for range 2 {
		require.NoError(t, g.run("ADD", a, own, result))
	}
	require.NoError(t, g.run("CHECK", a, own, result))
	set := policyTables(t)
	require.NotEqual(t, before, set)

	output(t, "nft", "delete", "table", "ip", names.PolicyTable)
	require.Error(t, g.run("CHECK", a, own, result))
	require.NoError(t, g.run(sdk.Repair, a, own, result))
	require.NoError(t, g.run(sdk.Repair, other, policed(conf, "other", "isolated"), otherResult))
	require.NoError(t, g.run("CHECK", a, own, result))
	require.Equal(t, set, policyTables(t))

	for range 2 {
		require.NoError(t, g.run("DEL", a, own, result))
		require.Equal(t, before, policyTables(t))
		require.Equal(t, members, files(t, dir))
	}
	require.NoError(t, g.run("CHECK", other, policed(conf, "other", "isolated"), otherResult))
	require.NoError(t, g.run("DEL", other, policed(conf, "other", "isolated"), otherResult))
	require.NotContains(t, policyTables(t), "allocnet:net/other/eth0")
}

// TestPolicyMissingAtADD: ADD does not rely on the store alone: it makes the policy that another
// attachment has again, if another program, or a reboot, has removed it from the kernel.
func TestPolicyMissingAtADD(t *testing.T) {
	for _, conf := range []object{guardedBridge(), guardedLinks("net")} {
		for _, family := range []string{"ip", "ip6"} {
			t.Run(conf["type"].(string)+" "+family, func(t *testing.T) {
				g := newGuardTest(t)
				g.native.exec.Host.Policies = policystate.New(t.TempDir())
				other, otherResult, _ := g.add("other", conf)
				require.NoError(t, g.run("ADD", other, policed(conf, "other", "isolated"), otherResult))
				a, result, _ := g.add("a", conf)
				output(t, "nft", "delete", "table", family, names.PolicyTable)
				require.NoError(t, g.run("ADD", a, policed(conf, "a", "isolated"), result))
				require.NoError(t, g.run("CHECK", a, policed(conf, "a", "isolated"), result))
				require.NoError(t, g.run("DEL", a, policed(conf, "a", "isolated"), result))
				require.NoError(t, g.run("DEL", other, policed(conf, "other", "isolated"), otherResult))
				require.NotContains(t, policyTables(t), "allocnet:net/")
				_, err := g.native.run("DEL", a, withResult(t, conf, result))
				require.NoError(t, err)
				_, err = g.native.run("DEL", other, withResult(t, conf, otherResult))
				require.NoError(t, err)
			})
		}
	}
}

// selecting is policed for an allocation whose own policy selects the label app=member.
func selecting(conf object, id, port string) object {
	o := policed(conf, id, "")
	o["runtimeConfig"].(object)["policy"].(object)["policy"] = object{"egress": object{"default": "deny", "rules": []any{object{
		"peers":    []any{object{"labels": object{"app": "member"}}},
		"services": []any{object{"protocol": "tcp", "ports": port}},
	}}}}
	return o
}

// members returns the lines of the IPv4 selections.
func members(t *testing.T) (lines []string) {
	t.Helper()
	in := false
	for line := range strings.Lines(output(t, "nft", "list", "table", "ip", names.PolicyTable)) {
		in = in && strings.TrimSpace(line) != "}" || strings.Contains(line, "set selection_")
		if in {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestSelectionOfALostState: a selection whose state was lost is in the kernel, but members that came
// since have not joined it.
func TestSelectionOfALostState(t *testing.T) {
	for _, conf := range []object{guardedBridge(), guardedLinks("net")} {
		t.Run(conf["type"].(string), func(t *testing.T) {
			g := newGuardTest(t)
			var dels []func() error
			add := func(id string, own object) {
				a, result, _ := g.add(id, conf)
				t.Cleanup(func() { _, _ = g.native.run("DEL", a, withResult(t, conf, result)) })
				dels = append(dels, func() error { return g.run("DEL", a, own, result) })
				require.NoError(t, g.run("ADD", a, own, result))
			}
			g.native.exec.Host.Policies = policystate.New(t.TempDir())
			add("member", policed(conf, "member", ""))
			add("first", selecting(conf, "first", "1"))
			g.native.exec.Host.Policies = policystate.New(t.TempDir())
			another := policed(conf, "another", "")
			another["runtimeConfig"].(object)["policy"].(object)["labels"] = object{"app": "member"}
			add("another", another)
			add("second", selecting(conf, "second", "2"))
			require.Contains(t, strings.Join(members(t), ""), "/another/eth0")
			for _, del := range slices.Backward(dels) {
				require.NoError(t, del())
			}
		})
	}
}

// TestSelectionIsChecked: CHECK of a member finds that it is not in a selection, and Repair adds it.
func TestSelectionIsChecked(t *testing.T) {
	conf := guardedLinks("net")
	g := newGuardTest(t)
	g.native.exec.Host.Policies = policystate.New(t.TempDir())
	first, firstResult, _ := g.add("first", conf)
	require.NoError(t, g.run("ADD", first, selecting(conf, "first", "1"), firstResult))
	a, result, _ := g.add("member", conf)
	member := policed(conf, "member", "")
	require.NoError(t, g.run("ADD", a, member, result))
	require.NoError(t, g.run("CHECK", a, member, result))
	before := members(t)
	output(t, "nft", "flush", "set", "ip", names.PolicyTable, strings.Fields(before[0])[1])
	require.Error(t, g.run("CHECK", a, member, result))
	require.NoError(t, g.run(sdk.Repair, a, member, result))
	require.NoError(t, g.run("CHECK", a, member, result))
	require.Equal(t, before, members(t))
	for _, one := range []struct {
		a            attachment
		conf, result object
	}{{a, member, result}, {first, selecting(conf, "first", "1"), firstResult}} {
		require.NoError(t, g.run("DEL", one.a, one.conf, one.result))
		_, err := g.native.run("DEL", one.a, withResult(t, conf, one.result))
		require.NoError(t, err)
	}
}

// TestPolicyDelOfAMember: the link is down before the attachment leaves the selections of others, whose
// policies would let it pass from then on.
func TestPolicyDelOfAMember(t *testing.T) {
	for _, conf := range []object{guardedBridge(), guardedLinks("net")} {
		t.Run(conf["type"].(string), func(t *testing.T) {
			g := newGuardTest(t)
			g.native.exec.Host.Policies = policystate.New(t.TempDir())
			a, result, _ := g.add("member", conf)
			t.Cleanup(func() { _, _ = g.native.run("DEL", a, withResult(t, conf, result)) })
			require.NoError(t, g.run("ADD", a, policed(conf, "member", ""), result))
			require.NoError(t, g.run("DEL", a, policed(conf, "member", ""), result))
			i := 0
			if conf["type"] == "bridge" {
				i = 1
			}
			link, err := netlink.LinkByName(result["interfaces"].([]any)[i].(object)["name"].(string))
			require.NoError(t, err)
			require.Zero(t, link.Attrs().Flags&net.FlagUp)
		})
	}
}

// TestPolicyOfPresentSelection: an ADD that makes a policy does not read the members of a selection
// that another policy has, so its time does not depend on their number. If the selection is missing
// in the kernel, it does.
func TestPolicyOfPresentSelection(t *testing.T) {
	g := newGuardTest(t)
	dir, conf := t.TempDir(), guardedLinks("net")
	g.native.exec.Host.Policies = policystate.New(dir)
	var attached []func() error
	add := func(id string, own object) error {
		a, result, _ := g.add(id, conf)
		t.Cleanup(func() { _, _ = g.native.run("DEL", a, withResult(t, conf, result)) })
		attached = append(attached, func() error { return g.run("DEL", a, own, result) })
		return g.run("ADD", a, own, result)
	}
	require.NoError(t, add("member", policed(conf, "member", "")))
	require.NoError(t, add("first", selecting(conf, "first", "1")))
	found, err := filepath.Glob(filepath.Join(dir, "members", "by", policystate.LabelKey("app", "member"), "*"))
	require.NoError(t, err)
	require.Len(t, found, 1)
	file := filepath.Join(dir, "members", filepath.Base(found[0])+".json")
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	require.NoError(t, add("second", selecting(conf, "second", "2")))
	output(t, "nft", "delete", "table", "ip", names.PolicyTable)
	require.ErrorContains(t, add("third", selecting(conf, "third", "3")), file)
	require.NoError(t, os.WriteFile(file, whole, 0o600))
	for _, del := range slices.Backward(attached) {
		require.NoError(t, del())
	}
	require.NotContains(t, output(t, "nft", "list", "table", "ip6", names.PolicyTable), "selection_")
}

// policyTables returns the lines of the tables of policies.
func policyTables(t *testing.T) string {
	t.Helper()
	return sorted(output(t, "nft", "--stateless", "list", "table", "ip", names.PolicyTable) + output(t, "nft", "--stateless", "list", "table", "ip6", names.PolicyTable))
}

// files returns the paths of the files below a directory.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	for _, pattern := range []string{"*/*", "*/*/*", "*/*/*/*"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		require.NoError(t, err)
		list = append(list, found...)
	}
	return list
}

// TestPolicyChangeInterrupted: an interrupted change of the policy has not ended the connections that
// it denies; Repair does.
func TestPolicyChangeInterrupted(t *testing.T) {
	g := newGuardTest(t)
	dir := t.TempDir()
	g.native.exec.Host.Policies = policystate.New(dir)
	conf := guardedLinks("net")
	a, result, _ := g.add("a", conf)
	t.Cleanup(func() { _, _ = g.native.run("DEL", a, withResult(t, conf, result)) })
	require.NoError(t, g.run("ADD", a, policed(conf, "a", ""), result))
	t.Cleanup(func() { _ = g.run("DEL", a, policed(conf, "a", ""), result) })

	s, err := sandbox.Open(a.netns)
	require.NoError(t, err)
	defer s.Close()
	var l net.Listener
	to := net.JoinHostPort(address(result), "90")
	require.NoError(t, s.Do(func() (err error) {
		l, err = net.Listen("tcp", to)
		return err
	}))
	defer l.Close()
	c, err := net.Dial("tcp", to)
	require.NoError(t, err)
	defer c.Close()
	tracked := func() bool {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		require.NoError(t, err)
		return slices.ContainsFunc(flows, func(f *netlink.ConntrackFlow) bool { return f.Forward.DstPort == 90 })
	}
	require.True(t, tracked())

	denying := policed(conf, "a", "")
	denying["runtimeConfig"].(object)["policy"].(object)["policy"] = object{
		"ingress": object{"rules": []any{object{"action": "deny", "peers": []any{object{"name": "host"}}}}}}
	unreadable := filepath.Join(dir, "members", "other.json")
	require.NoError(t, os.WriteFile(unreadable, []byte("x"), 0o600))
	require.ErrorContains(t, g.run(sdk.Repair, a, denying, result), "end connections")
	require.True(t, tracked())
	require.NoError(t, os.Remove(unreadable))
	require.NoError(t, g.run(sdk.Repair, a, denying, result))
	require.False(t, tracked())
}

// TestPolicyGC: GC and Collect remove what a stale attachment has in the kernel and in the store, GC
// also if the store has lost it. What others have stays.
func TestPolicyGC(t *testing.T) {
	for _, conf := range []object{guardedBridge(), guardedLinks("net")} {
		for _, how := range []string{"GC", "GC, member lost", "Collect"} {
			t.Run(conf["type"].(string)+" "+how, func(t *testing.T) { testPolicyGC(t, conf, how) })
		}
	}
}

func testPolicyGC(t *testing.T, conf object, how string) {
	g := newGuardTest(t)
	dir := t.TempDir()
	host := g.native.exec.Host
	host.Policies = policystate.New(dir)
	selecting := policed(conf, "stays", "")
	selecting["runtimeConfig"].(object)["policy"].(object)["policy"] = object{
		"ingress": object{"default": "deny", "rules": []any{object{"peers": []any{object{"labels": object{"app": "stale"}}}}}}}
	stays, staysResult, _ := g.add("stays", conf)
	t.Cleanup(func() { _, _ = g.native.run("DEL", stays, withResult(t, conf, staysResult)) })
	require.NoError(t, g.run("ADD", stays, selecting, staysResult))
	t.Cleanup(func() { _ = g.run("DEL", stays, selecting, staysResult) })
	sameID := &ruleset.Elements{Owner: names.Owner{Network: "net", ID: "stale", IfName: "eth0", Instance: "another"}}
	sameID.Known = []netip.Addr{netip.MustParseAddr("192.0.2.1")} // in another state directory
	require.NoError(t, host.Rules.Add(t.Context(), sameID))
	t.Cleanup(func() { _ = host.Rules.Del(t.Context(), sameID) })
	tables, stored := policyTables(t), files(t, dir)

	a, result, _ := g.add("stale", conf)
	t.Cleanup(func() { _, _ = g.native.run("DEL", a, withResult(t, conf, result)) })
	withPolicy := how != "GC, member lost" // the policy of a lost member is that of CollectOrphans
	preset := map[bool]string{true: "isolated"}[withPolicy]
	require.NoError(t, g.run("ADD", a, policed(conf, "stale", preset), result))
	require.Contains(t, policyTables(t), "allocnet:net/stale/eth0")
	if !withPolicy {
		owner := names.Owner{Network: "net", ID: "stale", IfName: "eth0"}
		s, err := host.Policies.Share(t.Context())
		require.NoError(t, err)
		m, err := s.Member(owner.Veth())
		require.NoError(t, err)
		require.NoError(t, s.DeleteMember(m))
		s.Unlock()
	}

	if how == "Collect" {
		require.NoError(t, policy.Collect(t.Context(), host, func(o names.Owner) bool { return o.ID == "stale" }))
	} else {
		valid := []any{object{"containerID": "stays", "ifname": "eth0"}}
		_, err := g.native.run("GC", attachment{}, with(selecting, "cni.dev/valid-attachments", valid))
		require.NoError(t, err)
	}
	require.Equal(t, tables, policyTables(t))
	require.Equal(t, stored, files(t, dir))
	require.NoError(t, g.run("CHECK", stays, selecting, staysResult))
}
