package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
)

// editing is a host whose configuration is edited while clients use it. Each
// edition of the network "net" has its own DNS domain, which identifies it in
// results.
type editing struct {
	h       *host
	d       *daemonProcess
	edition int
	stop    chan struct{}

	mu    sync.Mutex
	wrong []error
	done  atomic.Int64
}

const refused = "ready; the last reload was refused, see the log"

// TestDaemonReloadUnderLoad writes valid and invalid configurations and
// settings while clients work. No operation fails, and the last valid edition
// stays active.
func TestDaemonReloadUnderLoad(t *testing.T) {
	clients, rounds := 8, 6
	if testing.Short() {
		clients, rounds = 4, 2
	}
	h := newHost(t, testbed.Native.Engine)
	e := &editing{h: h, d: h.newDaemon(""), stop: make(chan struct{})}
	e.settings(time.Second)
	e.write(e.text())
	e.d.begin()
	e.d.told("READY=1")
	require.Eventually(t, func() bool { return e.d.client().Ready(t.Context()) == nil }, time.Minute, time.Millisecond)
	var working sync.WaitGroup
	for i := range clients {
		a := h.Alloc(fmt.Sprintf("client-%d", i))
		working.Go(func() { e.work(a, i%2 == 0) })
	}
	probe := h.Alloc("probe")
	for round := range rounds {
		e.edition++
		e.write(e.text())
		require.Equal(t, e.edition, e.use(probe, "net"))
		for _, bad := range []string{e.text()[:100], "", `{"cniVersion": "1.0.0", "name": "net", "plugins": 7}`} {
			e.write(bad)
			e.inForce(probe)
		}
		e.newcomer(probe, round)
		e.d.configure("engine = 7")
		require.Equal(t, refused, e.d.reload())
		e.inForce(probe)
		e.settings(time.Duration(2+round) * time.Second) // valid settings, which create a new generation
		require.Equal(t, refused, e.d.reload(), "the network that is in force would be lost")
		e.inForce(probe)

		// In place and in two parts, so a reader may see half of it.
		e.edition++
		text := e.text()
		e.writeInPlace(text[:len(text)/2])
		e.writeInPlace(text)
		require.Equal(t, e.edition, e.use(probe, "net"))
		require.Equal(t, "ready", e.d.reload())
		require.Equal(t, e.edition, e.use(probe, "net"))
	}
	close(e.stop)
	working.Wait()
	require.Empty(t, e.wrong)
	t.Logf("%d cycles of clients meanwhile", e.done.Load())
	require.Positive(t, e.done.Load())
}

func (e *editing) file(network string) string { return filepath.Join(e.h.ConfDir, network+".conflist") }

// settings writes settings that differ from the previous ones in a value of the
// configurator.
func (e *editing) settings(delay time.Duration) {
	e.d.configure(fmt.Sprintf("manager { enabled = true }\nretry {\n attempts = 1\n delay = %q\n}", delay))
}

// text returns the current edition of the network.
func (e *editing) text() string {
	plugins := testbed.Chain("bridge", testbed.Families{V4: "10.99.0.0/16", V6: "fd00:99::/64"}, "")
	plugins[1]["dns"] = map[string]any{"nameservers": []string{"192.0.2.53"}, "domain": fmt.Sprintf("e%d", e.edition)}
	data, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "net", "plugins": plugins})
	require.NoError(e.h.T, err)
	return string(data)
}

func (e *editing) write(text string) {
	e.h.T.Helper()
	next := filepath.Join(e.h.ConfDir, "next")
	require.NoError(e.h.T, os.WriteFile(next, []byte(text), 0o600))
	require.NoError(e.h.T, os.Rename(next, e.file("net")))
}

func (e *editing) writeInPlace(text string) {
	e.h.T.Helper()
	require.NoError(e.h.T, os.WriteFile(e.file("net"), []byte(text), 0o600))
}

// use sets up an allocation, tears it down, and returns the edition of its
// network.
func (e *editing) use(a configurator.Allocation, network string) (edition int) {
	e.h.T.Helper()
	a.Networks = []string{network}
	status, err := e.d.client().Setup(e.h.Context(), a)
	require.NoError(e.h.T, err)
	require.NoError(e.h.T, e.d.client().Teardown(e.h.Context(), a))
	if status.DNS != nil { // from "net"
		_, err = fmt.Sscanf(status.DNS.Domain, "e%d", &edition)
		require.NoError(e.h.T, err)
	}
	return edition
}

// inForce checks that the last valid edition stays active although its file is
// invalid, and that the daemon reports this.
func (e *editing) inForce(probe configurator.Allocation) {
	e.h.T.Helper()
	require.Equal(e.h.T, e.edition, e.use(probe, "net"))
	_, skipped := e.d.client().Networks(context.Background())
	require.Len(e.h.T, skipped, 1)
	require.Equal(e.h.T, e.file("net"), skipped[0].File)
}

// newcomer checks that a new network can be used as soon as its file exists.
func (e *editing) newcomer(probe configurator.Allocation, round int) {
	e.h.T.Helper()
	name := fmt.Sprintf("new-%d", round)
	e.h.Network(name, testbed.Chain("ptp", testbed.Families{V4: fmt.Sprintf("10.98.%d.0/24", round)}, "")...)
	e.use(probe, name)
	require.NoError(e.h.T, os.Remove(e.file(name)))
	probe.Networks = []string{name}
	_, err := e.d.client().Setup(e.h.Context(), probe)
	require.ErrorIs(e.h.T, err, configurator.ErrUnknownNetwork)
}

// work is a client: it repeatedly sets up, checks and tears down an allocation.
func (e *editing) work(a configurator.Allocation, plugin bool) {
	cycle, last := e.apiCycle, 0
	if plugin {
		cycle = e.pluginCycle
	}
	for {
		select {
		case <-e.stop:
			return
		default:
		}
		edition, err := cycle(a)
		if err == nil && edition < last {
			err = fmt.Errorf("edition %d after edition %d", edition, last)
		}
		last = edition
		e.done.Add(1)
		if err != nil {
			e.mu.Lock()
			e.wrong = append(e.wrong, err)
			e.mu.Unlock()
			return
		}
	}
}

func (e *editing) apiCycle(a configurator.Allocation) (edition int, err error) {
	c, ctx := e.d.client(), e.h.T.Context()
	status, err := c.Setup(ctx, a)
	if err != nil {
		return 0, err
	}
	if status.DNS != nil {
		_, err = fmt.Sscanf(status.DNS.Domain, "e%d", &edition)
	}
	return edition, errors.Join(err, c.Check(ctx, a), c.Teardown(ctx, a))
}

// pluginCycle uses the configuration that the manager writes, as a runtime
// does.
func (e *editing) pluginCycle(a configurator.Allocation) (edition int, err error) {
	list, err := libcni.ConfListFromFile(filepath.Join(e.h.ConfDir, "00-allocnet.conflist"))
	if err != nil {
		return 0, err
	}
	var keys map[string]any
	if err := json.Unmarshal(list.Plugins[0].Bytes, &keys); err != nil {
		return 0, err
	}
	keys["name"], keys["cniVersion"] = list.Name, list.CNIVersion
	config, err := json.Marshal(keys)
	if err != nil {
		return 0, err
	}
	out, err := e.d.plugin("ADD", a.ID, a.Netns, config)
	if err != nil {
		return 0, err
	}
	var result types100.Result
	if err := json.Unmarshal(out, &result); err != nil {
		return 0, err
	}
	if result.DNS.Domain != "" {
		_, err = fmt.Sscanf(result.DNS.Domain, "e%d", &edition)
	}
	_, checkErr := e.d.plugin("CHECK", a.ID, a.Netns, config)
	_, delErr := e.d.plugin("DEL", a.ID, a.Netns, config)
	return edition, errors.Join(err, checkErr, delErr)
}
