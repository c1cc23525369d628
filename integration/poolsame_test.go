package integration

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// pooledRequest is a request that must have the same result with and without a pool.
type pooledRequest struct {
	main     string // the main plugin; "" is bridge
	f        testbed.Families
	version  string // of CNI; "" is 1.0.0
	change   func(plugins map[string]map[string]any)
	more     []map[string]any                 // plugins at the end of the chain
	request  func(a *configurator.Allocation) // nil for a plain one
	networks []string                         // nil is "net"
	bypasses bool                             // whether no slot serves it
	full     bool                             // another one has a part of it
}

var (
	tcpAndUDP = []portmap.Port{{Label: "http", Value: 8080, To: 80}}
	everyPort = []portmap.Port{
		{Label: "http", Value: 8080, To: 80, Protocols: []string{"tcp"}},
		{Label: "dns", Value: 53, To: 5353, Protocols: []string{"udp"}},
		{Label: "diameter", Value: 3868, Protocols: []string{"sctp"}},
		{Label: "local", Value: 9090, To: 80, HostIP: "127.0.0.1"},
		{Label: "one address", Value: 9091, To: 80, HostIP: testhost.Host4.Addr().String()},
		{Label: "IPv6 address", Value: 9091, To: 80, HostIP: testhost.Host6.Addr().String()},
		{Label: "every IPv6 address", Value: 9092, HostIP: "::"},
	}
)

func publish(ports []portmap.Port) func(*configurator.Allocation) {
	return func(a *configurator.Allocation) { a.Ports = ports }
}

var pooledRequests = map[string]pooledRequest{
	"plain":              {f: testbed.Dual},
	"plain IPv4":         {f: testbed.V4Only},
	"plain IPv6":         {f: testbed.V6Only},
	"ptp":                {main: "ptp", f: testbed.Dual, full: true},
	"ptp over IPv4":      {main: "ptp", f: testbed.V4Only, full: true},
	"ports":              {f: testbed.Dual, request: publish(tcpAndUDP)},
	"ports of every way": {f: testbed.Dual, request: publish(everyPort)},
	"ports of ptp":       {main: "ptp", f: testbed.Dual, request: publish(everyPort)},
	"ports over IPv6":    {main: "ptp", f: testbed.V6Only, request: publish(tcpAndUDP)},
	"version 0.4.0":      {f: testbed.V4Only, version: "0.4.0", request: publish(tcpAndUDP)},
	"version 1.1.0":      {f: testbed.Dual, version: "1.1.0"},
	"masquerade all":     {f: testbed.Dual, request: publish(tcpAndUDP), change: func(p map[string]map[string]any) { p["portmap"]["masqAll"] = true }},
	"no masquerading":    {f: testbed.Dual, change: func(p map[string]map[string]any) { p["bridge"]["ipMasq"] = false }},
	"MTU":                {f: testbed.Dual, change: func(p map[string]map[string]any) { p["bridge"]["mtu"] = 1400 }},
	"port isolation":     {f: testbed.Dual, change: func(p map[string]map[string]any) { p["bridge"]["portIsolation"] = true }},
	"isolated":           {f: testbed.Dual, request: publish(tcpAndUDP), change: func(p map[string]map[string]any) { p["firewall"]["ingressPolicy"] = "isolated" }},
	"isolated ptp": {main: "ptp", f: testbed.Dual, request: publish(tcpAndUDP),
		change: func(p map[string]map[string]any) { p["firewall"]["ingressPolicy"] = "isolated" }},
	"DNS of the network": {f: testbed.Dual, change: func(p map[string]map[string]any) {
		p["bridge"]["dns"] = map[string]any{"nameservers": []string{"10.0.0.53"}, "domain": "example.org", "search": []string{"a", "b"}}
	}},
	"DNS of the host": {f: testbed.Dual, change: func(p map[string]map[string]any) {
		p["bridge"]["ipam"].(map[string]any)["resolvConf"] = "/run/allocnet-test-resolv.conf"
	}},
	"no gateway": {f: testbed.V4Only, change: func(p map[string]map[string]any) { p["bridge"]["isGateway"] = false }},
	"no addresses": {change: func(p map[string]map[string]any) {
		delete(p["bridge"], "ipam")
		delete(p["bridge"], "isGateway")
		delete(p["bridge"], "ipMasq")
	}},
	"args":         {f: testbed.Dual, request: func(a *configurator.Allocation) { a.Args = map[string]string{"NOMAD_JOB": "web", "K8S_POD_NAME": "x"} }},
	"scheduler's":  {f: testbed.Dual, request: func(a *configurator.Allocation) { a.SchedulerArgs = map[string]string{"NOMAD_REGION": "global"} }},
	"scope":        {f: testbed.Dual, request: func(a *configurator.Allocation) { a.Scope, a.RequireAddress, a.MustBeNew = "nomad", true, true }},
	"by name":      {f: testbed.Dual, request: func(a *configurator.Allocation) { a.Networks = []string{"net"} }},
	"path":         {f: testbed.Dual, request: func(a *configurator.Allocation) { a.Netns = sandbox.DefaultDir + "/other" }},
	"MAC in args":  {f: testbed.Dual, bypasses: true, request: func(a *configurator.Allocation) { a.Args = map[string]string{"MAC": chosenMAC} }},
	"address":      {f: testbed.Dual, bypasses: true, request: func(a *configurator.Allocation) { a.SchedulerArgs = map[string]string{"IP": "10.99.0.77"} }},
	"interface":    {f: testbed.Dual, bypasses: true, request: func(a *configurator.Allocation) { a.Interface = "net0" }},
	"container ID": {f: testbed.Dual, bypasses: true, request: func(a *configurator.Allocation) { a.ContainerID = "pod" }},
	"two networks": {f: testbed.Dual, bypasses: true, networks: []string{"net", "second"}},
	"iptables":     {f: testbed.V4Only, bypasses: true, change: func(p map[string]map[string]any) { p["bridge"]["ipMasqBackend"] = "iptables" }},
	"static address": {bypasses: true, change: func(p map[string]map[string]any) {
		p["bridge"]["ipam"] = map[string]any{"type": "static", "addresses": []any{map[string]any{"address": "10.99.0.9/24", "gateway": "10.99.0.1"}}}
	}},
	"capabilities": {f: testbed.Dual, bypasses: true,
		change: func(p map[string]map[string]any) {
			p["bridge"]["capabilities"] = map[string]bool{"mac": true, "ips": true, "dns": true}
		},
		request: func(a *configurator.Allocation) {
			a.MAC, a.IPs, a.DNS = chosenMAC, []string{"10.99.0.88"}, &configurator.DNS{Servers: []string{"10.0.0.53"}}
		}},
	"bandwidth": {main: "ptp", f: testbed.V4Only, bypasses: true, full: true,
		more: []map[string]any{{"type": "bandwidth", "capabilities": map[string]bool{"bandwidth": true}}},
		request: func(a *configurator.Allocation) {
			a.Bandwidth = &configurator.Bandwidth{IngressRate: 8_000_000, IngressBurst: 800_000}
		}},
	"tuning": {main: "ptp", f: testbed.V4Only, bypasses: true,
		more: []map[string]any{{"type": "tuning", "mtu": 1400, "mac": chosenMAC, "sysctl": map[string]string{"net.core.somaxconn": "500"}}}},
	"plugin binary": {f: testbed.Dual, bypasses: true, more: []map[string]any{{"type": "one", "fake": fakeplugin.Config{Log: os.DevNull}}}},
}

// TestPoolSame compares everything that a Setup makes with and without a pool.
func TestPoolSame(t *testing.T) {
	testhost.EachElsewhere(t, []string{"bridge", "ptp"}, func(t *testing.T, main string) {
		dir := t.TempDir()
		require.NoError(t, fakeplugin.Install(dir, "one"))
		for name, r := range pooledRequests {
			if cmp.Or(r.main, "bridge") == main {
				t.Run(name, func(t *testing.T) {
					if r.full {
						skip.InShort(t)
					}
					r.test(t, dir)
				})
			}
		}
	})
}

func (r *pooledRequest) test(t *testing.T, plugins string) {
	h := newHost(t, configurator.EngineNative, func(c *configurator.Config) {
		c.PluginDirs, c.Networks = []string{plugins, testbed.PluginDir}, r.networks
		if r.networks == nil {
			c.Networks = []string{"net"}
		}
	})
	r.configure(h)
	a := configurator.Allocation{ID: "same", OwnNetns: true}
	if r.request != nil {
		r.request(&a)
	}
	// A slot has the guard, and routes the loopback, before it is known whether there will be
	// host ports. A process holds the guard as long as it runs.
	rules, err := ruleset.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rules.Close()) })
	require.NoError(t, rules.Guard(h.Context(), ruleset.IPv4))
	require.NoError(t, rules.HoldGuard(h.Context(), ruleset.IPv4))
	ordinary := h.described(a)
	h.Config.Pools = []configurator.Pool{{Network: "net", Size: 1}}
	require.NoError(t, h.Close())
	h.Configurator, err = configurator.New(h.Config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	require.Eventually(t, func() bool { s := h.Pools()[0]; return s.Ready == 1 || s.Err != nil }, 20*time.Second, time.Millisecond)
	pooled := h.described(a)
	require.Equal(t, r.bypasses, h.Pools()[0].Taken == 0, "%+v", h.Pools()[0])
	if a.Ports == nil {
		ordinary, pooled = loopbackRoute.ReplaceAllString(ordinary, ""), loopbackRoute.ReplaceAllString(pooled, "")
	}
	require.Equal(t, ordinary, pooled)
}

// loopbackRoute is the sysctl that a slot has in addition.
var loopbackRoute = regexp.MustCompile(`(?m)^/proc/sys/net/ipv4/conf/(br-test|VETH\d)/route_localnet = \d\n`)

// configure writes the networks.
func (r *pooledRequest) configure(h *host) {
	h.T.Helper()
	main, version := r.main, r.version
	if main == "" {
		main = "bridge"
	}
	if version == "" {
		version = "1.0.0"
	}
	plugins := append(testbed.Chain(main, r.f, ""), r.more...)
	if r.change != nil {
		byType := map[string]map[string]any{}
		for _, p := range plugins {
			byType[p["type"].(string)] = p
		}
		r.change(byType)
	}
	require.NoError(h.T, os.WriteFile("/run/allocnet-test-resolv.conf", []byte("nameserver 10.0.0.54\nsearch example.com\n"), 0o600))
	h.T.Cleanup(func() { require.NoError(h.T, os.Remove("/run/allocnet-test-resolv.conf")) })
	h.NetworkOf(version, "net", plugins...)
	h.Network("second", testbed.Chain("ptp", testbed.Families{V4: "10.98.0.0/24"}, "")...)
}

// described sets an allocation up, describes everything that it then has, and tears it down.
// Slots are removed after the Setup.
func (h *host) described(a configurator.Allocation) string {
	h.T.Helper()
	s, err := h.Setup(h.Context(), a)
	require.NoError(h.T, err)
	require.True(h.T, s.Created)
	require.NoError(h.T, h.ClosePools())
	require.NoError(h.T, h.Check(h.Context(), a))
	r, err := h.Get(h.Context(), a.ID)
	require.NoError(h.T, err)
	again := a
	again.MustBeNew = false
	found, err := h.Setup(h.Context(), again)
	require.NoError(h.T, err)
	s.Created = false
	require.Equal(h.T, s.Interfaces, found.Interfaces)

	netns := filepath.Join(sandbox.DefaultDir, a.ID)
	if a.Netns != "" {
		netns = a.Netns
	}
	var d description
	d.add("status", indented(h.T, s))
	d.add("record", indented(h.T, r))
	d.add("record on disk", recordText(h.T, a.ID))
	d.commands(h.T, filepath.Base(netns))
	testbed.Within(h.T, netns, func() error { d.add("sysctls in the namespace", sysctls(h.T)); return nil })
	d.commands(h.T, "")
	d.add("sysctls of the host", sysctls(h.T))
	leased, err := filepath.Glob("/var/lib/cni/networks/*/[0-9f]*")
	require.NoError(h.T, err)
	for _, file := range leased {
		text, err := os.ReadFile(file)
		require.NoError(h.T, err)
		d.add(file, string(text))
	}
	a.Wait = true
	require.NoError(h.T, h.Teardown(h.Context(), a))
	_, err = os.Lstat(netns)
	require.ErrorIs(h.T, err, fs.ErrNotExist)
	return d.normal(s)
}

// description is text with headings.
type description struct{ strings.Builder }

func (d *description) add(heading, text string) { fmt.Fprintf(d, "\n=== %s\n%s\n", heading, text) }

// commands adds what programs show of a network namespace, or of the host.
func (d *description) commands(t testing.TB, netns string) {
	t.Helper()
	lines := []string{
		"ip -d link", "ip address", "ip -4 route show table all", "ip -6 route show table all", "ip -4 rule", "ip -6 rule",
		"tc qdisc", "nft list ruleset", "iptables -S", "ip6tables -S",
	}
	for _, line := range lines {
		words, within := strings.Fields(line), ""
		if netns != "" {
			within = filepath.Join(sandbox.DefaultDir, netns)
		}
		var out []byte
		testbed.Within(t, within, func() (err error) {
			if out, err = exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
				err = fmt.Errorf("%s: %w: %s", line, err, out)
			}
			return err
		})
		d.add(netns+" "+line, sorted(string(out)))
	}
}

// sysctls lists the network's sysctls as the calling thread sees them, except for counters and
// random values.
func sysctls(t testing.TB) string {
	t.Helper()
	var list []string
	err := filepath.WalkDir("/proc/sys/net", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasSuffix(path, "nf_conntrack_count") || strings.HasSuffix(path, "fastopen_key") {
			return err
		}
		if text, err := os.ReadFile(path); err == nil { // some cannot be read
			list = append(list, path+" = "+strings.TrimSpace(string(text)))
		}
		return nil
	})
	require.NoError(t, err)
	return strings.Join(list, "\n")
}

// recordText returns the record of an allocation, of which the file has what was recorded one
// after the other, without its times and the identity of its network namespace.
func recordText(t testing.TB, id string) string {
	t.Helper()
	f, err := os.Open(configurator.DefaultStateDir + "/allocs/" + id + ".json")
	require.NoError(t, err)
	defer f.Close()
	r := map[string]any{}
	for d := json.NewDecoder(f); d.More(); {
		var line map[string]any
		require.NoError(t, d.Decode(&line))
		if taken, ok := line["taken"].(map[string]any); ok { // what a slot lacks
			line = taken
			line["containerID"] = line["slot"]
			delete(line, "slot")
		}
		maps.Copy(r, line)
	}
	maps.DeleteFunc(r, func(_ string, v any) bool { return v == nil || v == "" })
	for _, key := range []string{"created", "updated", "namespace"} {
		require.Contains(t, r, key)
		delete(r, key)
	}
	return indented(t, r)
}

func indented(t testing.TB, v any) string {
	t.Helper()
	text, err := json.MarshalIndent(v, "", " ")
	require.NoError(t, err)
	return string(text)
}

var (
	// slotName matches the container ID of a slot, which an allocation from a pool keeps.
	slotName = regexp.MustCompile(`pool-[0-9a-f]{16}`)
	// hostLinks matches the names of links, which are hashes of the container ID.
	hostLinks = regexp.MustCompile(`veth[a-z2-7]{11}`)
	// byNature matches what differs between any two allocations: times, revisions, counters, indexes of
	// links and what the kernel derives from them, numbers of ports.
	byNature = regexp.MustCompile(`(?m)^\d+: |@if\d+|link-netns(id)? \S+|"(created|updated|revision)": .*|\w+_timer +\S+|packets \d+ bytes \d+|` +
		`metric 42949\d+|(port_id|port_no|designated_port) \S+|expires \d+sec| tentative`)
	// containers matches the container ID in a record, which other allocations do not have.
	containers = regexp.MustCompile(`(?m)^ *"containerID": "same",?\n|^ *"container": "same",?\n`)
	// unordered matches the headings of lists in any order.
	unordered = regexp.MustCompile(`sysctls|route|ruleset`)
	// later matches routes that the kernel makes or removes some time after the link, or after duplicate
	// address detection.
	later = regexp.MustCompile(`^multicast ff00::/8|LINK-LOCAL.* dev up0|fe80::.* dev up0|^local LINK-LOCAL`)
	macs  = regexp.MustCompile(`\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b`)
	local = regexp.MustCompile(`\bfe80::[0-9a-f:]+`)
)

// normal returns the description without what differs between any two allocations. MACs,
// addresses and links get names in their order.
func (d *description) normal(s *configurator.Status) string {
	text := withAddresses(d.String())
	text = containers.ReplaceAllString(slotName.ReplaceAllString(text, "same"), "")
	text = numbered(text, hostLinks, "VETH")
	for _, itf := range s.Interfaces {
		for i, a := range itf.Addresses {
			address, _, _ := strings.Cut(a.Address, "/")
			text = regexp.MustCompile(`\b`+regexp.QuoteMeta(address)+`\b`).ReplaceAllString(text, fmt.Sprintf("ADDRESS%d-%s", i, itf.Name))
		}
	}
	text = byNature.ReplaceAllString(text, "")
	text = numbered(text, macs, "MAC")
	text = numbered(text, local, "LINK-LOCAL")
	var parts []string
	for part := range strings.SplitSeq(text, "\n=== ") {
		lines := strings.Split(part, "\n")
		if unordered.MatchString(lines[0]) {
			lines = slices.DeleteFunc(lines, func(l string) bool { return later.MatchString(l) })
			slices.Sort(lines[1:])
		}
		parts = append(parts, strings.Join(lines, "\n"))
	}
	return strings.Join(parts, "\n=== ")
}

// targets matches addresses that nft shows as numbers.
var targets = regexp.MustCompile(`\b0x[0-9a-f]{32}\b`)

// withAddresses replaces numbers by the IPv6 addresses that they are.
func withAddresses(text string) string {
	return targets.ReplaceAllStringFunc(text, func(number string) string {
		bytes, err := hex.DecodeString(number[2:])
		if err != nil {
			return number
		}
		a, _ := netip.AddrFromSlice(bytes)
		return a.String()
	})
}

// numbered replaces each distinct match by a name with its number.
func numbered(text string, of *regexp.Regexp, name string) string {
	names := map[string]string{}
	return of.ReplaceAllStringFunc(text, func(match string) string {
		if match == chosenMAC {
			return match
		}
		if names[match] == "" {
			names[match] = fmt.Sprint(name, len(names))
		}
		return names[match]
	})
}
