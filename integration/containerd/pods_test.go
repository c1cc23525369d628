package containerd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/process"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
)

// setup is a way in which CRI gets its network.
type setup struct {
	name string
	// begin prepares the host. It returns the directory of the plugins, and the daemon
	// if there is one.
	begin func(t testing.TB) (plugins string, daemon *process.Process)
}

var (
	withDaemon = setup{"daemon", func(t testing.TB) (string, *process.Process) {
		network(t, "net", "bridge")
		return beginManaged(t)
	}}
	dropIn = setup{"drop-in", func(t testing.TB) (string, *process.Process) {
		network(t, "net", "bridge")
		return pluginDir(t, "--daemon"), newDaemon(t, "")
	}}
	reference = setup{"reference", func(t testing.TB) (string, *process.Process) {
		network(t, "net", "bridge")
		return filepath.Dir(refplugins.Path(t, "bridge")), nil
	}}
)

// beginManaged starts the daemon, whose manager leads containerd to it, with additional settings of
// the manager.
func beginManaged(t testing.TB, settings ...string) (plugins string, daemon *process.Process) {
	t.Helper()
	d := newDaemon(t, "manager {\n enabled = true\n "+strings.Join(settings, "\n ")+"\n}\n")
	const own = "/etc/cni/net.d/00-allocnet.conflist"
	t.Cleanup(func() { require.NoError(t, os.Remove(own)) })
	eventually(t, "the manager writes its configuration", func() bool { return exists(own) })
	return pluginDir(t, "loopback"), d
}

// TestPods runs 50 pods with host ports, ten at a time: with the reference plugins, with
// the drop-in plugins, and with the plugin of the daemon. It prints how long each takes.
func TestPods(t *testing.T) {
	requireHost(t)
	var all []*measurement
	for _, s := range []setup{reference, dropIn, withDaemon} {
		t.Run(s.name, func(t *testing.T) { all = append(all, measurePods(t, s)) })
	}
	if len(all) == 3 {
		t.Logf("50 pods, 10 at a time:\n%s", table(all))
	}
}

func measurePods(t *testing.T, s setup) *measurement {
	m := new(measurement)
	plugins, daemon := s.begin(t)
	h := newHost(t, plugins)
	if daemon != nil { // the reference plugins leave tracked connections
		h.requireUnchanged()
	}
	k := newKubelet(h)
	list := pods(51)
	first, list := list[:1], list[1:] // concurrent first uses of the reference plugins fail
	k.all(first, k.run)
	m.name = s.name
	began := time.Now()
	m.run = median(k.all(list, func(ctx context.Context, p *pod) error {
		err := k.run(ctx, p)
		for ; err != nil && daemon == nil; err = k.run(ctx, p) { // as the kubelet does
			m.failed.Add(1)
			t.Log(err)
		}
		return err
	}))
	m.perSecond = float64(len(list)) / time.Since(began).Seconds()
	k.all(list, k.serve)
	for _, p := range list {
		k.requireServed(p)
	}
	m.stop = median(k.all(list, k.stop))
	m.setUp, m.tearDown = k.networkTime("set_up_pod"), k.networkTime("tear_down_pod")
	for _, p := range list[:3] {
		_, err := h.get(p.port, "/")
		require.ErrorIs(t, err, unix.ECONNREFUSED)
	}
	k.removeAll()
	return m
}

// measurement has the times of a setup: the medians of CRI's calls, and of these the mean
// times that containerd's metrics report for the network.
type measurement struct {
	name                       string
	run, setUp, stop, tearDown time.Duration
	perSecond                  float64
	failed                     atomic.Int32 // calls of RunPodSandbox
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

// networkTime returns the mean duration of an operation of CRI on the network of a pod.
func (k *kubelet) networkTime(operation string) time.Duration {
	k.t.Helper()
	r, err := http.Get("http://" + metrics + "/v1/metrics")
	require.NoError(k.t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	require.NoError(k.t, err)
	value := func(name string) (v float64) {
		key := "containerd_cri_network_plugin_operations_duration_seconds_seconds_" + name + `{operation_type="` + operation + `"} `
		_, rest, found := strings.Cut(string(text), "\n"+key)
		require.True(k.t, found, "no metric %s", key)
		_, err := fmt.Sscan(rest, &v)
		require.NoError(k.t, err)
		return v
	}
	return time.Duration(value("sum") / value("count") * float64(time.Second))
}

// table compares measurements with the first one.
func table(all []*measurement) string {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(title string, of func(m *measurement) float64) {
		fmt.Fprint(w, title, "\t")
		for _, m := range all {
			fmt.Fprintf(w, "%.1f (%.2f)\t", of(m), of(m)/of(all[0]))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprint(w, "\t")
	for _, m := range all {
		fmt.Fprintf(w, "%s\t", m.name)
	}
	fmt.Fprintln(w)
	row("RunPodSandbox, ms", func(m *measurement) float64 { return ms(m.run) })
	row("of it the network, ms", func(m *measurement) float64 { return ms(m.setUp) })
	row("StopPodSandbox, ms", func(m *measurement) float64 { return ms(m.stop) })
	row("of it the network, ms", func(m *measurement) float64 { return ms(m.tearDown) })
	row("pods per second", func(m *measurement) float64 { return m.perSecond })
	fmt.Fprint(w, "failures\t")
	for _, m := range all {
		fmt.Fprintf(w, "%d\t", m.failed.Load())
	}
	fmt.Fprintln(w)
	w.Flush()
	return b.String()
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
