package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os/exec"
	"regexp"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/demo"
	"github.com/allocnet/allocnet/cmd/internal/netpolicy"
	"github.com/allocnet/allocnet/cmd/internal/pluginfiles"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/cmd/internal/trace"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/object"
	"github.com/allocnet/allocnet/internal/state/lease"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// erased erases a status line.
const erased = "\r\x1b[K"

func TestProgress(t *testing.T) {
	shown := make(chan string, 100)
	a := newApp(nil, nil, nil)
	a.err = term.New(writerFunc(func(p []byte) { shown <- string(p) }))
	a.err.Terminal = true
	done := a.progress("setting up %s", "web")
	require.Regexp(t, "^\r\x1b\\[Ksetting up web \\.\\.\\. 0\\.[3-9] s$", <-shown)
	done()
	done()
	last := ""
	for len(shown) > 0 {
		last = <-shown
	}
	require.Equal(t, erased, last)
}

// TestProgressOfGC: the progress shows the number of removed allocations.
func TestProgressOfGC(t *testing.T) {
	w := newWorkspace(t)
	for _, id := range []string{"a", "b", "stays"} {
		w.sandbox(id)
		w.run("setup", id).ok(t)
	}
	conf, err := configurator.New(configurator.Config{ConfDir: w.path("conf"), StateDir: w.path("state"), PluginDirs: []string{w.path("plugins")}})
	require.NoError(t, err)
	far := collected(t.Context(), conf, "", []string{"stays"})
	require.Equal(t, " 0 of 2,", far())
	require.NoError(t, conf.Teardown(t.Context(), configurator.Allocation{ID: "a"}))
	require.Equal(t, " 1 of 2,", far())
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

func TestHints(t *testing.T) {
	_, ofBinaries := configurator.New(configurator.Config{Engine: configurator.EngineExec, Policy: &policy.Policy{Presets: []policy.Preset{policy.Isolated}}})
	for want, err := range map[string]error{
		"containernetworking-plugins": fmt.Errorf("x: %w", configurator.ErrPluginNotInstalled),
		"apt-get install iptables":    errors.New(`plugin type="portmap" failed (add): exec: "iptables": executable file not found in $PATH`),
		"CAP_NET_ADMIN":               fmt.Errorf("x: %w", fs.ErrPermission),
		"a capability is missing":     errors.New("plugin bridge: operation not permitted"),
		"allocnet networks":           fmt.Errorf("x: %w", configurator.ErrUnknownNetwork),
		"allocnet inspect ID":         fmt.Errorf("x: %w", configurator.ErrDifferent),
		"allocnet teardown other":     &portmap.ConflictError{ID: "a", OtherID: "other"},
		"only once":                   &portmap.ConflictError{ID: "a"},
		"ip netns add":                fmt.Errorf("%w: %w", configurator.ErrInvalidAllocation, fs.ErrNotExist),
		"cleanup --force ID":          fmt.Errorf("x: %w", configurator.ErrIncomplete),
		"--timeout":                   fmt.Errorf("x: %w", context.DeadlineExceeded),
		"interrupted":                 fmt.Errorf("x: %w", context.Canceled),
		"free some space":             &allocnet.StateDirError{Dir: "/s", Err: &fs.PathError{Op: "write", Path: "/s/f", Err: syscall.ENOSPC}},
		"mount -o remount,rw":         &allocnet.StateDirError{Dir: "/s", Err: &fs.PathError{Op: "open", Path: "/s/lock", Err: syscall.EROFS}},
		"ulimit -n":                   fmt.Errorf("%w: StateDir: %w", configurator.ErrInvalidConfig, syscall.EMFILE),
		"its own network namespace":   fmt.Errorf("x: %w", configurator.ErrInUse),
		"allocnet teardown ID":        fmt.Errorf("x: %w", configurator.ErrSetUp),
		"is unchanged":                fmt.Errorf("x: %w: %w", configurator.ErrNotChecked, context.DeadlineExceeded),
		"ip link del allocnet0":       errors.New(`plugin type="bridge" failed (add): failed to set bridge addr: "allocnet0" already has an IP address different from 10.9.0.1/16`),
		"if the owner or the mode of /s/a.json is wrong, correct it (chown root, chmod go-w); if it is damaged, `allocnet teardown a --netns PATH`": fmt.Errorf("x: %w", &allocnet.RecordError{ID: "a", File: "/s/a.json", Err: errors.New("x")}),
		"repeat `allocnet setup` of a broken":   &brokenError{1, fmt.Errorf("x: %w", configurator.ErrUnhealthy)},
		"if it hangs":                           &brokenError{1, fmt.Errorf("x: %w", configurator.ErrNotChecked)},
		"do as I say":                           fmt.Errorf("x: %w", stepError{fs.ErrPermission, "do as I say"}),
		"shows every overlap":                   fmt.Errorf("x: %w", &allocnet.SubnetError{}),
		"remove some with":                      fmt.Errorf("x: %w", rtnl.ErrBridgeFull),
		"another network":                       errors.New(`failed to connect "veth1" to bridge cni0: exchange full`),
		"larger subnet":                         fmt.Errorf("x: %w", lease.ErrExhausted),
		"lost ones with `allocnet gc`":          errors.New(`plugin type="host-local" failed (add): no IP addresses available in range set: 10.1.0.1-10.1.0.2`),
		"request another address":               errors.New("requested IP address 10.1.0.2 is not available in range set 10.1.0.1-10.1.0.2"),
		"other than its gateway":                fmt.Errorf("x: %w", lease.ErrNotInRange),
		"releases it":                           errors.New("10.1.0.1 has been allocated to web, duplicate allocation is not allowed"),
		"allocnet teardown db`":                 fmt.Errorf("x: %w", &allocnet.PortTakenError{Network: "n", ID: "db", Interface: "eth0"}),
		"the ports of all":                      fmt.Errorf("x: %w", &allocnet.PortTakenError{ID: "#0123"}),
		"`allocnet repair` restores":            fmt.Errorf("x: %w", configurator.ErrUnhealthy),
		"run the command that the error names":  &brokenError{1, fmt.Errorf("x: %w: %w", configurator.ErrUnhealthy, rtnl.ErrForeignRoute)},
		"(without a daemon: `allocnet repair`)": fmt.Errorf("%w: x: %w", configurator.ErrUnhealthy, object.ErrSmallMTU),
		"newer allocnet":                        &allocnet.RecordError{ID: "a", File: "/s/a.json", Err: allocnet.ErrNewer},
		"use --engine auto; or":                 ofBinaries,
		"with the engine auto or native":        &configurator.UnservedError{Capabilities: []string{"policy"}},
		"update or replace it":                  fmt.Errorf("x: %w of plugin \"a\"", configurator.ErrInvalidResult),
		"only the output is lost":               fmt.Errorf("%w: x", term.ErrOutput),
	} {
		require.Contains(t, hint(err), want)
	}
	require.Empty(t, hint(errors.New("anything else")))

	missing := errors.Join(configurator.ErrPluginNotInstalled, &exec.Error{Name: "iptables", Err: exec.ErrNotFound})
	both := hint(&failedDemo{cause: missing})
	require.Contains(t, both, "containernetworking-plugins")
	require.Contains(t, both, "apt-get install iptables", "all that is to be installed at once")
	first := hint(configurator.ErrPluginNotInstalled)
	require.Equal(t, first, hint(errors.Join(configurator.ErrPluginNotInstalled, configurator.ErrNotFound)), "else the first one alone")
	require.NotContains(t, hint(&exec.Error{Name: "other", Err: exec.ErrNotFound}), "iptables")
}

func TestExitCodes(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int
	}{
		{nil, exitOK},
		{errors.New("x"), exitFailure},
		{usagef("x"), exitUsage},
		{configurator.ErrInvalidConfig, exitUsage},
		{fmt.Errorf("x: %w", &portmap.PortError{}), exitUsage},
		{configurator.ErrUnknownNetwork, exitFailure},
		{configurator.ErrNotFound, exitNo},
		{configurator.ErrNotChecked, exitFailure},
		{configurator.ErrInUse, exitUsage},
		{&configurator.UnservedError{}, exitUsage},
		{errors.Join(configurator.ErrUnhealthy, term.ErrOutput), exitFailure},
		{&portmap.ConflictError{}, exitFailure},
		{fmt.Errorf("%w: %w", configurator.ErrInvalidAllocation, &portmap.ConflictError{}), exitUsage},
		{errLeftovers, exitNo},
		{fmt.Errorf("%w: %w", configurator.ErrUnhealthy, configurator.ErrInvalidAllocation), exitNo},
		{&failedDemo{cause: configurator.ErrUnhealthy}, exitFailure},
		{&failedDemo{cause: configurator.ErrInvalidConfig}, exitUsage},
	} {
		require.Equal(t, test.want, exitCode(test.err), "%v", test.err)
	}
	require.Equal(t, 137, newApp(nil, nil, nil).finish(nil, reported(137), nil))
}

func TestKinds(t *testing.T) {
	for want, err := range map[string]error{
		"incomplete":           fmt.Errorf("%w: %w", configurator.ErrIncomplete, context.DeadlineExceeded),
		"not-checked":          fmt.Errorf("%w: %w", configurator.ErrNotChecked, context.DeadlineExceeded),
		"unhealthy":            fmt.Errorf("%w: %w", configurator.ErrUnhealthy, configurator.ErrInvalidAllocation),
		"leftovers":            errLeftovers,
		"findings":             errFindings,
		"unreachable":          errEnds,
		"unpublished":          errUnpublished,
		"no-daemon":            fmt.Errorf("%w: %w", client.ErrUnavailable, fs.ErrNotExist),
		"not-allowed":          fmt.Errorf("%w: %w", client.ErrForbidden, fs.ErrPermission),
		"busy":                 client.ErrBusy,
		"no-answer":            fmt.Errorf("%w: %w", client.ErrNoAnswer, io.ErrUnexpectedEOF),
		"not-ready":            fmt.Errorf("%w: %w", errNotReady, configurator.ErrPluginNotInstalled),
		"undecided":            netpolicy.ErrUndecided,
		"not-found":            configurator.ErrNotFound,
		"in-use":               configurator.ErrInUse,
		"set-up":               configurator.ErrSetUp,
		"revision":             &configurator.RevisionError{},
		"cannot-update":        configurator.ErrCannotUpdate,
		"already-exists":       configurator.ErrExists,
		"different":            configurator.ErrDifferent,
		"foreign-file":         pluginfiles.ErrForeign,
		"unknown-network":      configurator.ErrUnknownNetwork,
		"plugin-not-installed": configurator.ErrPluginNotInstalled,
		"unserved":             &configurator.UnservedError{},
		"port-conflict":        &portmap.ConflictError{},
		"invalid":              fmt.Errorf("x: %w", &portmap.PortError{}),
		"exhausted":            allocnet.ErrExhausted,
		"no-port":              allocnet.ErrNoPort,
		"address-unavailable":  fmt.Errorf("x: %w", lease.ErrTaken),
		"subnet-taken":         &allocnet.SubnetError{},
		"bridge-full":          allocnet.ErrBridgeFull,
		"limit":                allocnet.ErrLimit,
		"state-dir":            allocnet.ErrStateDir,
		"unreadable-record":    &allocnet.RecordError{Err: errors.New("x")},
		"canceled":             &failedDemo{cause: fmt.Errorf("%w: %w", demo.ErrInterrupted, context.Canceled)},
		"timeout":              context.DeadlineExceeded,
		"not-permitted":        fs.ErrPermission,
		"plugin":               &types.Error{Code: 7},
		"output":               term.ErrOutput,
		"internal":             errors.New("x"),
	} {
		require.Equal(t, want, newErrorReport(err, "").Kind)
		require.Regexp(t, "(?m)^  "+want+" +[a-z]", kindsHelp())
	}
	require.Equal(t, "port-conflict", newErrorReport(&allocnet.PortTakenError{}, "").Kind)
	require.Equal(t, "limit", newErrorReport(fmt.Errorf("%w: StateDir: %w", configurator.ErrInvalidConfig, syscall.EMFILE), "").Kind)
	taken := newErrorReport(fmt.Errorf("ADD: attach interface eth0: %w", configurator.ErrInUse), "")
	require.NotContains(t, taken.Hint, "--interface", "setup has no such flag")
	hung := newErrorReport(fmt.Errorf("%w: %w", client.ErrNoAnswer, context.DeadlineExceeded), "")
	require.Equal(t, "timeout", hung.Kind)
	require.Contains(t, hung.Hint, "systemctl status allocnetd")
	require.Len(t, strings.Split(kindsHelp(), "\n"), 40, "every kind is in the table above")
}

func TestMessageSaysNothingTwice(t *testing.T) {
	a, b := errors.New("a"), errors.New("b")
	for want, err := range map[string]error{
		"a":                errors.Join(a, a),
		"a\nb":             errors.Join(a, b, a),
		"a: more\nb":       errors.Join(a, fmt.Errorf("%w: more", a), b),
		"a\n\nab: c\n\nbc": errors.New("a\n\nab: c\n\nbc"),
	} {
		require.Equal(t, want, message(err))
	}
}

func TestInterruptedDemo(t *testing.T) {
	err := &failedDemo{cause: fmt.Errorf("%w: %w", demo.ErrInterrupted, context.Canceled), clean: true}
	require.EqualError(t, err, "the demo was interrupted; everything was torn down")
	require.Equal(t, exitFailure, exitCode(err))
	err.clean = false
	require.ErrorContains(t, err, "the demo was interrupted; not everything could be torn down")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errOut bytes.Buffer
	w := newWorkspace(t)
	privhost.Require(t)
	require.Equal(t, exitFailure, run(ctx, w.withFlags([]string{"demo", "--json"}), nil, &out, &errOut))
	report := decode[errorReport](t, errOut.String())
	require.Equal(t, errorReport{Error: "the demo was interrupted; everything was torn down", Kind: "canceled"}, report)
	require.Contains(t, out.String(), `{"ok":false,"clean":true,"interrupted":true,`)
}

func TestParseBandwidth(t *testing.T) {
	for text, want := range map[string]configurator.Bandwidth{
		"ingress=10M":                  {IngressRate: 1e7, IngressBurst: 1e7},
		"egress=5G":                    {EgressRate: 5e9, EgressBurst: maxBurst},
		"ingress=1k:2k,egress=300:400": {IngressRate: 1000, IngressBurst: 2000, EgressRate: 300, EgressBurst: 400},
	} {
		got, err := parseBandwidth(text)
		require.NoError(t, err, text)
		require.Equal(t, want, *got, text)
	}
	for _, text := range []string{
		"", "10M", "ingress", "ingress=", "ingress=0", "ingress=-1", "ingress=1T", "ingress=1:", "ingress=1,ingress=2",
		"ingress=1,", "ingress=18446744073709551616", "ingress=18446744073709552k", "up=1",
	} {
		_, err := parseBandwidth(text)
		require.Error(t, err, text)
	}
}

func FuzzParseBandwidth(f *testing.F) {
	f.Add("ingress=10M:1k,egress=5G")
	f.Fuzz(func(t *testing.T, text string) {
		b, err := parseBandwidth(text)
		if err != nil {
			return
		}
		require.NotZero(t, b.IngressRate+b.EgressRate)
		require.Equal(t, b.IngressRate == 0, b.IngressBurst == 0)
		require.Equal(t, b.EgressRate == 0, b.EgressBurst == 0)
	})
}

func TestShortPorts(t *testing.T) {
	var mappings []portmap.Mapping
	for _, text := range []string{"8080:80/tcp", "53", "[::1]:9000-9002:90-92", "100-101:300-301/udp", "102:400/udp"} {
		port, err := portmap.Parse(text)
		require.NoError(t, err)
		some, err := portmap.Mappings([]portmap.Port{port}, portmap.Options{})
		require.NoError(t, err)
		mappings = append(mappings, some...)
	}
	require.Equal(t, "8080->80/tcp, 53->53/tcp+udp, [::1]:9000-9002->90-92/tcp+udp, 100-101->300-301/udp, 102->400/udp", shortPorts(mappings))
	require.Empty(t, shortPorts(nil))
}

func TestVersion(t *testing.T) {
	require.Contains(t, runWith("", "version").ok(t), "go-cni")
	got := decode[versionInfo](t, runWith("", "version", "--json").ok(t))
	require.NotEmpty(t, got.Go)
	require.Contains(t, got.CNIVersions, "1.1.0")

	got = newVersionInfo(&debug.BuildInfo{
		GoVersion: "go1", Main: debug.Module{Version: "v1"},
		Settings: []debug.BuildSetting{{Key: "vcs.modified", Value: "true"}, {Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "now"}},
		Deps: []*debug.Module{
			{Path: "github.com/containerd/go-cni", Version: "v2"},
			{Path: "github.com/containernetworking/cni", Version: "v3", Replace: &debug.Module{Path: "github.com/containernetworking/cni", Version: "v4"}},
		},
	})
	require.Equal(t, versionInfo{"v1", "abc+changes", "now", "go1", "v2", "v4", got.CNIVersions}, got)
	require.Equal(t, "unknown", newVersionInfo(nil).GoCNI)
}

func TestShowDemo(t *testing.T) {
	steps := []demo.Step{
		{Section: "First", Name: "one", Detail: "well done", Took: 1500 * time.Microsecond},
		{Section: "First", Name: "two", Took: time.Second},
		{Section: "Last", Name: "three", Err: errors.New("bad\nworse"), Took: time.Millisecond},
	}
	summary := &demo.Summary{
		Steps: 3, Requests: 1, Clean: true, Answer: time.Millisecond, Took: 2 * time.Second,
		Setups: []time.Duration{30 * time.Millisecond, 3 * time.Millisecond}, Teardowns: []time.Duration{4 * time.Millisecond},
	}
	show := func(json bool, ok bool) string {
		var b bytes.Buffer
		a := newApp(nil, &b, nil)
		a.flags.json = json
		s := a.newShow()
		for _, step := range steps {
			s.Begin(step.Section, step.Name)
			s.End(step)
		}
		require.Equal(t, 1, s.failures())
		s.summarize(summary, ok)
		return b.String()
	}
	require.Equal(t, `
First
  ok   one                                      1.5 ms  well done
  ok   two                                       1.0 s

Last
  FAIL three                                    1.0 ms
      bad
      worse

`, show(false, false))
	require.Contains(t, show(false, true),
		"\nok: 3 steps in 2.0 s: set up in 30 ms and 3.0 ms, 1 request answered (median 1.0 ms), torn down in 4.0 ms; nothing is left\n")
	require.Equal(t, `{"section":"First","step":"one","ok":true,"ms":1.5,"detail":"well done"}
{"section":"First","step":"two","ok":true,"ms":1000}
{"section":"Last","step":"three","ok":false,"ms":1,"error":"bad\nworse"}
{"ok":false,"clean":true,"interrupted":false,"steps":3,"failed":1,"ms":2000,"setupMs":[30,3],"teardownMs":[4],"requests":1,"requestP50Ms":1}
`, show(true, false))
}

// inTerminal returns the output of a command in a terminal of 80 columns.
func inTerminal(t *testing.T, do func(*app)) (lines []string) {
	t.Helper()
	var b bytes.Buffer
	a := newApp(nil, nil, nil)
	a.out = term.New(&b)
	a.out.Terminal, a.out.Columns = true, 80
	do(a)
	for line := range strings.Lines(b.String()) {
		shown := strings.Split(strings.TrimSuffix(line, "\n"), erased)
		line = shown[len(shown)-1]
		require.LessOrEqual(t, utf8.RuneCountInString(line), 80, line)
		require.Equal(t, strings.TrimRight(line, " "), line)
		lines = append(lines, line)
	}
	return lines
}

// TestEightyColumns: the output of commands fits 80 columns with the IDs of
// runtimes.
func TestEightyColumns(t *testing.T) {
	id := longID + ".eth0"
	record := &configurator.Record{
		ID: id, Netns: "/run/netns/" + longID, Phase: configurator.PhaseReady, Engine: configurator.EngineNative,
		Networks: []configurator.NetworkRecord{{Network: "front"}, {Network: "back"}},
		Args:     map[string]string{"K8S_POD_NAME": "web-7d4b9c8f6d-x2x9z", "K8S_POD_NAMESPACE": "a-long-namespace", "K8S_POD_INFRA_CONTAINER_ID": longID},
		Ports:    []portmap.Mapping{{HostIP: "2001:db8::1", HostPort: 8080, ContainerPort: 80, Protocol: "tcp", Label: "http"}},
		Status: &configurator.Status{Address: "10.202.0.2", AddressIPv6: "fd0a:110c:2e7::2", Interfaces: []configurator.Interface{{
			Network: "front", Name: "eth0", MAC: "02:00:00:00:00:01", Sandbox: "/run/netns/" + longID, Addresses: []configurator.Address{
				{Address: "10.202.0.2/16", Gateway: "10.202.0.1"}, {Address: "fd0a:110c:2e7::2/64", Gateway: "fd0a:110c:2e7::1"},
			},
		}}},
	}
	lines := inTerminal(t, func(a *app) { a.printRecord(record) })
	require.Equal(t, "ID         "+id, lines[0])
	require.Equal(t, []string{"Namespace  /run/netns/", "           " + longID}, lines[2:4])
	text := strings.Join(lines, "\n")
	require.Contains(t, text, "10.202.0.2/16,")
	require.Contains(t, text, "K8S_POD_INFRA_CONTAINER_ID=\n           "+longID)

	path := &trace.Path{
		Protocol: "tcp", Host: netip.MustParseAddrPort("[2001:db8:5::10]:8080"), To: netip.MustParseAddrPort("[fd0a:110c:2e7::2]:80"), ID: "web",
		Steps: []trace.Step{
			{Name: "probe", State: trace.OK, Found: "a SYN from [2001:db8:9::1]:51538 to [2001:db8:5::10]:8080, as if received on up0"},
			{Name: "forward", State: trace.Failed, Found: "inet strict forward: drop by rule 2", Next: `change the rule "tcp dport 80 drop", or accept the packets before it: nft -a list chain inet strict forward`},
		},
	}
	lines = inTerminal(t, func(a *app) { a.printPath(path) })
	require.Equal(t, []string{
		"  ok     probe              a SYN from [2001:db8:9::1]:51538 to",
		"                            [2001:db8:5::10]:8080, as if received on up0",
	}, lines[1:3])

	networks := []configurator.Network{
		{Name: "allocnet", CNIVersion: "1.0.0", Engine: configurator.EngineNative, Plugins: []string{"loopback", "ptp", "portmap", "firewall"}, Capabilities: []string{"portMappings", "ips", "mac"}},
		{Name: "team-network", Default: true, CNIVersion: "1.0.0", Engine: configurator.EngineExec, File: "/etc/cni/net.d/10-team.conflist", Plugins: []string{"bridge"}},
	}
	lines = inTerminal(t, func(a *app) { a.printNetworks(networks) })
	require.Regexp(t, `^NAME +DEFAULT +ENGINE +CNI +PLUGINS +CAPABILITIES +FILE$`, lines[0])
	require.Regexp(t, `^team-network +yes +exec +1\.0\.0 +bridge +- +/etc/cni/net\.d/$`, lines[5])
	require.Regexp(t, `^ +10-team\.conflist$`, lines[6])
	networks[1].Name, networks[1].File = strings.Repeat("long", 20), "/etc/"+longID
	inTerminal(t, func(a *app) { a.printNetworks(networks) })

	lines = inTerminal(t, func(a *app) {
		s := a.newShow()
		for _, step := range []demo.Step{
			{Name: "outside -> [2001:db8:a110:c::1]:18081", Detail: "from 2001:db8:a110:c::2", Took: 500 * time.Microsecond},
			{Name: "allocnet-demo-b -> [fd0a:110c:2e7::2]:8080", Detail: "from fd0a:110c:2e7::3", Took: 700 * time.Microsecond},
			{Name: "compare the host", Took: 150 * time.Millisecond,
				Detail: "as before; what all allocations share (chains, forwarding) stays for the next one"},
		} {
			s.Begin("Section", step.Name)
			s.End(step)
		}
		s.summarize(&demo.Summary{
			Steps: 37, Requests: 14, Clean: true, Setups: []time.Duration{time.Second, time.Millisecond}, Teardowns: []time.Duration{time.Second, time.Second},
		}, true)
	})
	require.Contains(t, lines, "  ✓ outside -> [2001:db8:a110:c::1]:18081    0.5 ms  from 2001:db8:a110:c::2")
	require.Equal(t, "      next one", lines[len(lines)-4])
}

// TestIDsFoldLast: a folded ID could not be copied.
func TestIDsFoldLast(t *testing.T) {
	id := "frontend-with-a-long-name.eth0"
	record := &configurator.Record{
		ID: id, Phase: configurator.PhaseReady, Engine: configurator.EngineNative, NetnsGone: true, Created: time.Now(),
		Networks: []configurator.NetworkRecord{{Network: "production"}, {Network: "management"}},
		Status:   &configurator.Status{Address: "10.200.100.200", AddressIPv6: "fd00:aaaa:bbbb:cccc::1234"},
		Ports:    []portmap.Mapping{{HostIP: "192.168.100.200", HostPort: 20000, ContainerPort: 30000, Protocol: "tcp"}},
	}
	lines := inTerminal(t, func(a *app) {
		a.out.Table([]string{"ID", "PHASE", "NETWORKS", "ENGINE", "ADDRESS", "PORTS", "AGE"}, [][]term.Cell{listRow(record, time.Now())})
	})
	require.Regexp(t, "^"+regexp.QuoteMeta(id)+" ", lines[1])
}

func TestDemoThatCannotBegin(t *testing.T) {
	w := newWorkspace(t)
	got := w.run("demo", "--json", "--engine", "exec") // inside a private host the demo runs in place
	report := got.failure(t, exitFailure)
	require.Contains(t, report.Hint, "containernetworking-plugins")
	require.Contains(t, got.out, `"step":"plugins","ok":false`)
	require.Contains(t, got.out, `{"ok":false,"clean":true,"interrupted":false,"steps":4,`)
}
