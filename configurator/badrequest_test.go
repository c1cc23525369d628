package configurator

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/portmap"
)

// badRequests are invalid requests, by a part of their errors.
func badRequests() map[string]func(*Allocation) {
	raw := func(text string) json.RawMessage { return json.RawMessage(text) }
	long := strings.Repeat("x", 3<<20)
	ranges := func(sets ...[]IPRange) func(*Allocation) { return func(a *Allocation) { a.IPRanges = sets } }
	return map[string]func(*Allocation){
		"prevResult: invalid CNI result: ips[0]": func(a *Allocation) {
			a.PrevResult = raw(`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"}],"ips":[{"address":"10.0.0.2/24","interface":1}]}`)
		},
		"prevResult: invalid CNI result: interfaces[0]":                                    func(a *Allocation) { a.PrevResult = raw(`{"cniVersion":"1.0.0","interfaces":[null]}`) },
		"prevResult: invalid CNI result: decoding version from network config: json":       func(a *Allocation) { a.PrevResult = raw(`[]`) },
		"prevResult: invalid CNI result: decoding version from network config: unexpected": func(a *Allocation) { a.PrevResult = raw(`{`) },
		"prevResult: invalid CNI result: unsupported":                                      func(a *Allocation) { a.PrevResult = raw(`{"cniVersion":"9.0.0"}`) },
		"prevResult: has 31":                     func(a *Allocation) { a.PrevResult = raw(`{"cniVersion":"1.0.0","x":"` + long + `"}`) },
		"args: has 3145749 bytes":                func(a *Allocation) { a.Args = map[string]string{"K": long} },
		"args: has 131":                          func(a *Allocation) { a.SchedulerArgs = map[string]string{long[:128<<10]: ""} },
		`args: value "maybe" of "IgnoreUnknown"`: func(a *Allocation) { a.Args = map[string]string{"IgnoreUnknown": "maybe"} },
		"invalid IP address x":                   func(a *Allocation) { a.Args = map[string]string{"IP": "x"} },
		"aliases: capability arguments exceed":   func(a *Allocation) { a.Capabilities = map[string]json.RawMessage{"aliases": raw(`"` + long + `"`)} },
		"dns: capability arguments exceed":       func(a *Allocation) { a.DNS = &DNS{Options: []string{long}} },
		"cgroupPath: capability arguments":       func(a *Allocation) { a.CgroupPath = "/" + long },
		"it has 20 bytes, not 6":                 func(a *Allocation) { a.MAC = "00:00:00:00:fe:80:00:00:00:00:00:00:02:00:5e:10:00:00:00:01" },
		"all bytes are zero":                     func(a *Allocation) { a.MAC = "00:00:00:00:00:00" },
		"a group address":                        func(a *Allocation) { a.MAC = "01:00:5e:00:00:01" },
		`ips: "fe80::1%eth0"`:                    func(a *Allocation) { a.IPs = []string{"fe80::1%eth0"} },
		"192.0.2.1":                              func(a *Allocation) { a.IPs = []string{"192.0.2.1"} },
		"empty range set":                        ranges([]IPRange{}),
		"not in network":                         ranges([]IPRange{{Subnet: "10.79.0.0/24", RangeStart: "10.78.0.1"}}),
		"host bits":                              ranges([]IPRange{{Subnet: "10.79.0.7/24"}}),
		"too small":                              ranges([]IPRange{{Subnet: "10.79.0.0/32"}}),
		"mixed address families":                 ranges([]IPRange{{Subnet: "10.79.0.0/24"}, {Subnet: "fd00::/64"}}),
		"overlaps":                               ranges([]IPRange{{Subnet: "10.77.0.0/24"}}),
		"of less than 4096 bytes":                func(a *Allocation) { a.Netns = "/" + long },
		`\x00"`:                                  func(a *Allocation) { a.Netns += "\x00" },
		`interface "."`:                          func(a *Allocation) { a.Interface = "." },
		`interface "lo" already`:                 func(a *Allocation) { a.Interface = "lo" },
		"ports[0]: label has 3145728 bytes":      func(a *Allocation) { a.Ports = []portmap.Port{{Value: 9, Label: long}} },
		"conflists[0]: has 31":                   func(a *Allocation) { a.Conflists = []json.RawMessage{raw(`{"name":"` + long + `"}`)} },
		"has a name of 200 characters": func(a *Allocation) {
			a.Conflists = []json.RawMessage{raw(`{"cniVersion":"1.0.0","name":"` + long[:200] + `","plugins":[{"type":"one"}]}`)}
		},
	}
}

// TestBadRequests: an invalid request leaves nothing that prevents later
// requests, also with a plugin that cleanup does not know.
func TestBadRequests(t *testing.T) {
	for _, e := range []Engine{EngineExec, EngineNative} {
		t.Run(string(e), func(t *testing.T) {
			h := bridgedWithForeign(t, e, "")
			good := h.alloc("a")
			requests := badRequests()
			for _, words := range slices.Sorted(maps.Keys(requests)) {
				a := good
				requests[words](&a)
				_, err := h.Setup(t.Context(), a)
				require.ErrorContains(t, err, words)
				require.NotErrorIs(t, err, ErrIncomplete)
				require.Less(t, len(err.Error()), 8<<10, "what is long is not quoted")
				h.requireNoRecords()
				require.Empty(t, claimed(t, h), words)
			}
			_, err := h.Setup(t.Context(), good)
			require.NoError(t, err)
			require.NoError(t, h.Teardown(t.Context(), good))
		})
	}
}

// bridgedWithForeign returns a host with a bridged network, whose second plugin
// is unknown to cleanup.
func bridgedWithForeign(t *testing.T, e Engine, more string) *testHost {
	t.Helper()
	h, leases := nativeHost(t, "1.0.0")
	h.cfg.Engine, h.cfg.Networks, h.cfg.Network = e, []string{"net"}, ""
	h.cfg.Retry = RetryPolicy{Attempts: 1}
	h.cfg.PluginDirs = append(h.cfg.PluginDirs, filepath.Dir(refplugins.Path(t, "bridge")))
	h.Configurator = newConfigurator(t, h.cfg)
	h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[
		{"type":"bridge","bridge":"brtest","capabilities":{"mac":true,"ips":true,"ipRanges":true},"ipam":{"type":"host-local","dataDir":"`+leases+`","subnet":"10.77.0.0/24"}},
		{"type":"one","capabilities":{"portMappings":true,"aliases":true,"dns":true,"cgroupPath":true},"fake":{"log":"`+h.log+`"}}`+more+`]}`)
	return h
}

// TestTeardownOfAPoisonedRecord: an earlier version recorded requests that
// cannot be passed to plugins.
func TestTeardownOfAPoisonedRecord(t *testing.T) {
	for k, e := range []Engine{EngineExec, EngineNative} {
		for i, test := range []struct {
			name   string
			poison func(*record.Record)
		}{
			{"prevResult", func(r *record.Record) {
				r.Previous = json.RawMessage(`{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24","interface":1}]}`)
			}},
			{"args", func(r *record.Record) { r.Args = append(r.Args, [2]string{"K", strings.Repeat("x", 3<<20)}) }},
			{"capability", func(r *record.Record) {
				r.Capabilities = map[string]json.RawMessage{"ipRanges": json.RawMessage("[[]]")}
			}},
		} {
			t.Run(string(e)+" "+test.name, func(t *testing.T) {
				skip.InTurn(t, i+k, 2)
				h := bridgedWithForeign(t, e, "")
				a := h.alloc("a")
				p, err := h.planSetup(&a)
				require.NoError(t, err)
				require.NoError(t, h.complete(p))
				test.poison(p.Record)
				require.NoError(t, h.reserve(t.Context(), p))
				_, err = h.Setup(t.Context(), a)
				require.NoError(t, err, "what it left is taken down first")
				require.NoError(t, h.Teardown(t.Context(), a))
				require.NoError(t, h.reserve(t.Context(), p))
				require.NoError(t, h.Teardown(t.Context(), a))
				h.requireNoRecords()
				require.Empty(t, claimed(t, h))
			})
		}
	}
}

// TestPluginThatCannotBeStarted: a plugin that cannot be started needs no DEL.
func TestPluginThatCannotBeStarted(t *testing.T) {
	for _, e := range []Engine{EngineExec, EngineNative} {
		t.Run(string(e), func(t *testing.T) {
			h := bridgedWithForeign(t, e, `,{"type":"broken"}`)
			broken := filepath.Join(h.bin, "broken")
			require.NoError(t, os.WriteFile(broken, []byte("no program"), 0o644))
			a := h.alloc("a")
			_, err := h.Setup(t.Context(), a)
			require.ErrorIs(t, err, ErrPluginNotInstalled)
			require.ErrorContains(t, err, broken+" cannot be executed")
			require.NoError(t, os.Chmod(broken, 0o755))
			_, err = h.Setup(t.Context(), a)
			require.ErrorContains(t, err, unix.ENOEXEC.Error())
			require.NotErrorIs(t, err, ErrIncomplete)
			require.Equal(t, []string{"one ADD", "one DEL"}, h.commands())
			h.requireNoRecords()
			require.Empty(t, claimed(t, h))
		})
	}
}

// TestHostThatCannotBeOpened: if nothing was done, nothing needs to be undone.
func TestHostThatCannotBeOpened(t *testing.T) {
	h := bridgedWithForeign(t, EngineNative, "")
	a := h.alloc("a")
	p, err := h.planSetup(&a)
	require.NoError(t, err)
	require.NoError(t, errors.Join(h.complete(p), h.reserve(t.Context(), p)))
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	none := limit
	none.Cur = 0
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &none))
	_, err = h.add(t.Context(), p)
	rollBackErr := h.rollBack(t.Context(), p, err)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	require.ErrorIs(t, err, unix.EMFILE)
	require.NoError(t, rollBackErr)
	require.Empty(t, h.commands())
	require.NoError(t, h.Teardown(t.Context(), a))
}

// TestWithoutPrivileges: no operation begins that could not be undone.
func TestWithoutPrivileges(t *testing.T) {
	h := bridgedWithForeign(t, EngineNative, "")
	a := h.alloc("a")
	b := h.alloc("b")
	_, err := h.Setup(t.Context(), b)
	require.NoError(t, err)
	before := claimed(t, h)
	for _, lacking := range [][]uint{{unix.CAP_NET_ADMIN}, {unix.CAP_SYS_ADMIN}, {unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN}} {
		done := make(chan error, 4)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			done <- dropPrivileges(lacking...)
			_, err := h.Setup(t.Context(), a)
			done <- err
			done <- h.Ready(t.Context())
			done <- h.Teardown(t.Context(), b)
		}()
		require.NoError(t, <-done)
		for range 3 {
			err := <-done
			require.ErrorIs(t, err, ErrUnprivileged)
			require.ErrorIs(t, err, fs.ErrPermission)
			require.NotErrorIs(t, err, ErrIncomplete)
			require.Equal(t, slices.Contains(lacking, unix.CAP_NET_ADMIN), strings.Contains(err.Error(), "CAP_NET_ADMIN"))
			require.Equal(t, slices.Contains(lacking, unix.CAP_SYS_ADMIN), strings.Contains(err.Error(), "CAP_SYS_ADMIN"))
		}
		require.Equal(t, before, claimed(t, h))
		records, err := h.List(t.Context())
		require.NoError(t, err)
		require.Len(t, records, 1)
		require.Equal(t, PhaseReady, records[0].Phase)
	}
	require.NoError(t, h.Ready(t.Context()))
	require.NoError(t, h.Teardown(t.Context(), b))
}

// dropPrivileges removes capabilities from the calling thread.
func dropPrivileges(lacking ...uint) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	for _, c := range lacking {
		data[0].Effective &^= 1 << c
	}
	return unix.Capset(&header, &data[0])
}
