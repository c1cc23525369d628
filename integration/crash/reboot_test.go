package crash

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/lease"
	"github.com/allocnet/allocnet/internal/testing/faultinject"
	"github.com/allocnet/allocnet/internal/testing/skip"
)

// TestKilledAfterReboot kills the first operation after a reboot before each change of the
// lease directory. The next Setup gets the address that the allocation had before the
// reboot, all other leases of that boot are reclaimed, and those of another runtime stay. With -short, each engine
// runs one of the operations.
func TestKilledAfterReboot(t *testing.T) {
	for i, c := range []cell{
		{engine: configurator.EngineNative, main: "ptp"},
		{engine: configurator.EngineExec, backend: "iptables", main: "ptp", family: ipv4}, // with IPv6, it waits for duplicates
	} {
		t.Run(c.String(), func(t *testing.T) {
			h := newHost(t, c)
			for j, operation := range []string{"setup", "recover"} {
				t.Run(operation, func(t *testing.T) {
					skip.InTurn(t, i+j, 2)
					h.in(t).killAfterReboot(operation)
				})
			}
		})
	}
}

func (h *host) killAfterReboot(operation string) {
	h.t.Helper()
	for at := 1; ; at += distance() {
		data := h.rebooted()
		changes := 0
		ended := start(h.t, h.request(operation), func(_ int, p faultinject.Point) faultinject.Verdict {
			if p.Kind == faultinject.File && strings.HasPrefix(p.Object, data) && h.isReclaim(p) {
				changes++
			}
			return faultinject.Verdict{Kill: changes == at}
		})
		h.restart()
		message := fmt.Sprintf("%s was killed at change %d", operation, at)
		require.Equal(h.t, "podman", h.holder(data, "10.99.0.2"), message)
		_, err := h.Recover(h.ctx())
		require.NoError(h.t, err, message)
		h.mustSetUp(h.a)
		h.requireReachable(h.a)
		require.Equal(h.t, "a", h.holder(data, "10.99.0.77"), message)
		require.NoError(h.t, h.Check(h.ctx(), h.bystander), message)
		require.NoError(h.t, h.Teardown(h.ctx(), h.a), message)
		require.Equal(h.t, []string{"10.99.0.2", "10.99.0.3"}, h.leased(data), message)
		ended.requireGone(h.t)
		h.requireNothing()
		if !ended.Killed() {
			require.Greater(h.t, at, 6)
			return
		}
	}
}

// isReclaim reports whether a change of the lease directory is one of allocnet rather than of
// host-local's binary, which makes many that have nothing to do with a reboot.
func (h *host) isReclaim(p faultinject.Point) bool {
	return h.cell.engine != configurator.EngineExec || p.Call == "renameat" || p.Call == "fsetxattr" || strings.Contains(p.Object, "/.allocnet/")
}

// rebooted changes the network of the host to a lease directory with leases of an earlier
// boot, and of another runtime: "podman" made one after the reboot, which the bystander is
// not part of. The allocation had its requested addresses.
func (h *host) rebooted() (data string) {
	h.t.Helper()
	data = h.t.TempDir()
	file := filepath.Join(h.conf, "net.conflist")
	text, err := os.ReadFile(file)
	require.NoError(h.t, err)
	var list map[string]any
	require.NoError(h.t, json.Unmarshal(text, &list))
	for _, p := range list["plugins"].([]any) {
		if ipam, ok := p.(map[string]any)["ipam"].(map[string]any); ok {
			ipam["dataDir"], ipam["reclaimOnBoot"] = data, true
		}
	}
	text, err = json.Marshal(list)
	require.NoError(h.t, err)
	require.NoError(h.t, os.WriteFile(file, text, 0o600))

	h.reference(data, "podman")
	h.reference(data, "podman2")
	store, err := lease.Open(data, "net")
	require.NoError(h.t, err)
	before := store.InBoot("before")
	set := lease.RangeSet{{First: netip.MustParseAddr("10.99.0.2"), Last: netip.MustParseAddr("10.99.255.254")}}
	for _, one := range []struct {
		id      string
		address string
	}{{"gone", ""}, {"a", "10.99.0.77"}, {"gone2", ""}} {
		request := lease.Request{Set: set}
		if one.address != "" {
			request.Address = netip.MustParseAddr(one.address)
		}
		_, err := before.Reserve(h.ctx(), lease.Owner{ID: one.id, IfName: "eth0"}, []lease.Request{request})
		require.NoError(h.t, err)
	}
	skip.Unless(h.t, !before.Unmarked() && slices.Contains(h.leased(data), "10.99.0.77"),
		"the file system of %s has no extended attributes, so leases name no boot", data)
	return data
}

// reference runs ADD of the reference plugin host-local.
func (h *host) reference(data, id string) {
	h.t.Helper()
	c := exec.Command(filepath.Join(pluginDir, "host-local"))
	c.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + id, "CNI_IFNAME=eth0", "CNI_NETNS=/none", "CNI_NETNS_OVERRIDE=1", "CNI_PATH=/none"}
	c.Stdin = strings.NewReader(`{"cniVersion":"1.0.0","name":"net","type":"test","ipam":{"type":"host-local","dataDir":"` + data + `","ranges":[[{"subnet":"10.99.0.0/16"}]]}}`)
	out, err := c.Output()
	require.NoError(h.t, err, "%s", out)
}

// holder returns the container that has an address, or "".
func (h *host) holder(data, address string) string {
	h.t.Helper()
	text, err := os.ReadFile(filepath.Join(data, "net", address))
	if err != nil {
		require.ErrorIs(h.t, err, os.ErrNotExist)
	}
	id, _, _ := strings.Cut(string(text), "\r\n")
	return id
}

// leased returns the addresses that have a lease.
func (h *host) leased(data string) []string {
	h.t.Helper()
	store, err := lease.Open(data, "net")
	require.NoError(h.t, err)
	leases, err := store.List()
	require.NoError(h.t, err)
	var addresses []string
	for _, l := range leases {
		addresses = append(addresses, l.Addr.String())
	}
	return addresses
}
