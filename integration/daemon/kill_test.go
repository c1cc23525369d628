package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// TestDaemonKilled kills the daemon repeatedly at random moments while clients
// use it. After each kill, all acknowledged allocations work, and the host has
// no other objects. In the end everything can be removed, and nothing is left.
func TestDaemonKilled(t *testing.T) {
	testbed.EachElsewhere(t, []testbed.Way{testbed.Native}, func(t *testing.T, w testbed.Way) { testDaemonKilled(t, w.Engine) })
}

func testDaemonKilled(t *testing.T, engine configurator.Engine) {
	const most = 200 * time.Millisecond
	clients, kills, seed := testbed.CampaignSize(12, 16), testbed.CampaignSize(6, 300), testbed.CampaignSeed(t)
	h := newHost(t, engine)
	h.Network("net", testbed.Chain("bridge", testbed.Families{V4: "10.99.0.0/16", V6: "fd00:99::/64"}, "")...)
	d := h.newDaemon(`networks = ["net"]` + "\n" + `log { level = "warn" }`)
	b := &barrage{h: h, d: d, config: d.pluginConfig(map[string]any{"delegate": "net"}), stop: make(chan struct{})}
	var working sync.WaitGroup
	for i := range clients {
		w := b.worker(i, seed)
		b.workers = append(b.workers, w)
		working.Go(w.run)
	}
	stop := sync.OnceFunc(func() { close(b.stop); working.Wait() })
	defer stop()
	rnd := rand.New(rand.NewPCG(seed, uint64(clients)))
	wait := func() { <-time.NewTimer(time.Duration(rnd.Int64N(int64(most)))).C }
	for i := range kills {
		if i%3 == 0 { // so that it may be killed while it recovers
			d.begin()
			wait()
			d.kill()
		}
		d.begin()
		d.told("READY=1")
		b.compare()
		wait()
		d.kill()
	}
	d.begin()
	d.told("READY=1")
	b.compare()
	stop()
	b.finish()
}

// barrage is the shared state of all clients.
type barrage struct {
	h      *host
	d      *daemonProcess
	config []byte
	stop   chan struct{}
	ports  atomic.Int64

	workers []*worker
	// pause is locked for reading by each operation, and for writing while
	// nothing may change.
	pause sync.RWMutex

	acknowledged, lost atomic.Int64 // operations
	mu                 sync.Mutex
	wrong              []error // errors that the kills do not explain
}

// stopped reports whether the test is ending.
func (b *barrage) stopped() bool {
	select {
	case <-b.stop:
		return true
	default:
		return false
	}
}

// await returns when the daemon listens or the test is ending.
func (b *barrage) await() {
	for wait := time.NewTicker(2 * time.Millisecond); !b.stopped(); <-wait.C {
		if c, err := net.Dial("unix", client.DefaultSocket); err == nil {
			c.Close()
			return
		}
	}
}

// worker is a client. Each of its allocations uses one of its slots.
type worker struct {
	*barrage
	name  string
	rnd   *rand.Rand
	slots []*slot
	given []*held // allocations that the client abandoned without an acknowledged DEL
	count int
}

// slot is a network namespace and a host port that one allocation at a time
// uses.
type slot struct {
	name  string
	netns *sandbox.Sandbox
	port  int
	held  *held
}

// held is the state of an allocation as its client knows it.
type held struct {
	configurator.Allocation
	name         string // response of the server in its namespace
	program      string // path of the plugin; "" for an API client
	acknowledged bool
	addresses    []netip.Prefix // addresses when it was acknowledged
}

func (b *barrage) worker(i int, seed uint64) *worker {
	w := &worker{barrage: b, name: fmt.Sprintf("w%d", i), rnd: rand.New(rand.NewPCG(seed, uint64(i)))}
	for range 4 {
		w.slots = append(w.slots, w.slot())
	}
	return w
}

func (w *worker) next() int {
	w.count++
	return w.count
}

func (w *worker) slot() *slot {
	s := &slot{name: fmt.Sprintf("%s-s%d", w.name, w.next()), port: 20000 + int(w.ports.Add(1))}
	var err error
	s.netns, err = sandbox.Create(s.name)
	require.NoError(w.h.T, err)
	testbed.Serve(w.h.T, s.netns.Path(), "tcp", 80, s.name)
	return s
}

func (w *worker) run() {
	for !w.stopped() {
		w.pause.RLock()
		err := w.step(w.rnd.IntN(len(w.slots)))
		w.pause.RUnlock()
		switch {
		case err == nil:
			w.acknowledged.Add(1)
		case errors.Is(err, client.ErrUnavailable):
			w.await()
		case died(err):
			w.barrage.lost.Add(1)
		default:
			w.mu.Lock()
			w.wrong = append(w.wrong, err)
			w.mu.Unlock()
		}
	}
}

// died reports whether a response is missing because the daemon was killed.
func died(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// step runs one operation on a slot.
func (w *worker) step(i int) error {
	s := w.slots[i]
	switch {
	case len(w.given) > 2:
		err := w.remove(w.given[0])
		if err == nil {
			w.given = w.given[1:]
		}
		return err
	case s.held == nil:
		s.held = w.hold(s)
		return w.add(s.held)
	case s.held.acknowledged && w.rnd.IntN(3) == 0:
		return w.confirm(s.held)
	case s.held.acknowledged || w.rnd.IntN(3) == 0:
		err := w.remove(s.held)
		if err == nil {
			s.held = nil
		}
		return err
	case w.rnd.IntN(2) == 0:
		return w.add(s.held)
	}
	// A runtime may also abandon an allocation.
	w.given = append(w.given, s.held)
	w.slots[i] = w.slot()
	return s.netns.Destroy()
}

// hold returns an allocation for a slot, with a new ID or a former one.
func (w *worker) hold(s *slot) *held {
	a := &held{name: s.name}
	if w.rnd.IntN(2) == 0 {
		a.program = []string{pluginProgram, "allocnet-cni"}[w.rnd.IntN(2)]
	}
	a.ID, a.Netns = s.name, s.netns.Path()
	if w.rnd.IntN(2) == 0 {
		a.ID = fmt.Sprintf("%s-u%d", w.name, w.next())
	}
	if w.rnd.IntN(2) == 0 {
		a.Ports = []portmap.Port{{Value: s.port, To: 80, Protocols: []string{"tcp"}}}
	}
	return a
}

func (b *barrage) ctx() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Minute)
}

func (b *barrage) add(a *held) error {
	addresses, err := b.setup(a)
	if err == nil {
		a.acknowledged, a.addresses = true, addresses
	}
	return err
}

func (b *barrage) setup(a *held) (addresses []netip.Prefix, err error) {
	if a.program != "" {
		return b.pluginAdd(a)
	}
	ctx, cancel := b.ctx()
	defer cancel()
	status, err := b.d.client().Setup(ctx, a.Allocation)
	if err != nil {
		return nil, fmt.Errorf("setup %s: %w", a.ID, err)
	}
	for _, i := range status.Interfaces {
		for _, address := range i.Addresses {
			if p := netip.MustParsePrefix(address.Address); !p.Addr().IsLoopback() {
				addresses = append(addresses, p)
			}
		}
	}
	return addresses, nil
}

func (b *barrage) pluginAdd(a *held) (addresses []netip.Prefix, err error) {
	config := b.config
	if len(a.Ports) > 0 {
		var keys map[string]any
		if err := json.Unmarshal(config, &keys); err != nil {
			return nil, err
		}
		keys["runtimeConfig"] = map[string]any{"portMappings": []portmap.Mapping{{HostPort: a.Ports[0].Value, ContainerPort: 80, Protocol: "tcp"}}}
		if config, err = json.Marshal(keys); err != nil {
			return nil, err
		}
	}
	out, err := b.d.run(a.program, "ADD", a.ID, a.Netns, config)
	if err != nil {
		return nil, fmt.Errorf("ADD %s: %w", a.ID, err)
	}
	var result types100.Result
	if err := json.Unmarshal(out, &result); err != nil {
		return nil, fmt.Errorf("result %q: %w", out, err)
	}
	for _, ip := range result.IPs {
		ones, _ := ip.Address.Mask.Size()
		if address, _ := netip.AddrFromSlice(ip.Address.IP); !address.IsLoopback() {
			addresses = append(addresses, netip.PrefixFrom(address.Unmap(), ones))
		}
	}
	return addresses, nil
}

// confirm checks that an acknowledged allocation is unchanged.
func (b *barrage) confirm(a *held) error {
	if a.program != "" {
		_, err := b.d.run(a.program, "CHECK", a.ID, a.Netns, b.config)
		return during(err, "CHECK", a)
	}
	addresses, err := b.setup(a)
	if err == nil && fmt.Sprint(addresses) != fmt.Sprint(a.addresses) {
		return fmt.Errorf("%s had the addresses %s, and has %s", a.ID, a.addresses, addresses)
	}
	return err
}

func during(err error, act string, a *held) error {
	if err != nil {
		return fmt.Errorf("%s %s: %w", act, a.ID, err)
	}
	return nil
}

func (b *barrage) remove(a *held) error {
	a.acknowledged = false
	if a.program != "" {
		_, err := b.d.run(a.program, "DEL", a.ID, a.Netns, b.config)
		return during(err, "DEL", a)
	}
	ctx, cancel := b.ctx()
	defer cancel()
	return during(b.d.client().Teardown(ctx, a.Allocation), "teardown", a)
}

// compare checks, while nothing changes, that all acknowledged allocations
// work, that all recorded allocations are complete, and that the host has no
// address, rule, interface, file or tracked connection of any other.
func (b *barrage) compare() {
	b.pause.Lock()
	defer b.pause.Unlock()
	t := b.h.T
	b.requireWorking()
	testbed.Settle(t, b.d.client())
	records, err := b.d.client().List(context.Background())
	require.NoError(t, err)
	owned := map[string]bool{"10.99.0.0": true, "fd00:99::": true} // IDs, interfaces and addresses, and the networks themselves
	for _, r := range records {
		require.Equal(t, configurator.PhaseReady, r.Phase, r.ID)
		owned[r.ID], owned[r.ContainerID] = true, true
		for _, i := range r.Status.Interfaces {
			owned[i.Name] = true
			for _, address := range i.Addresses {
				owned[netip.MustParsePrefix(address.Address).Addr().String()] = true
			}
		}
	}
	now, err := hostsnap.Take(testbed.SnapshotOptions)
	require.NoError(t, err)
	for line := range strings.Lines(now.String()) {
		if kind, _, _ := strings.Cut(line, " "); kind == "netns" || kind == "mount" {
			continue // made by the workers
		}
		for _, text := range ownedByOne.FindAllString(line, -1) {
			if addr, err := netip.ParseAddr(text); err != nil || testbed.IsAllocations(addr) && !addr.IsMulticast() {
				require.True(t, owned[text], "%s has no allocation: %s", text, line)
			}
		}
	}
}

// ownedByOne matches names that belong to one allocation: the IDs that workers
// choose, names of interfaces, and addresses of the network.
var ownedByOne = regexp.MustCompile(`\bveth\w+|\bw\d+-[su]\d+\b|\b10\.99\.\d+\.\d+\b|\bfd00:99:[0-9a-f:]+`)

// requireWorking checks all acknowledged allocations, and returns their number.
func (b *barrage) requireWorking() int {
	b.h.T.Helper()
	working := 0
	for _, w := range b.workers {
		for _, s := range w.slots {
			if s.held != nil && s.held.acknowledged {
				working++
				b.works(s.held)
			}
		}
	}
	return working
}

// finish checks all allocations and removes them.
func (b *barrage) finish() {
	t := b.h.T
	working, given := b.requireWorking(), 0
	for _, w := range b.workers {
		for _, s := range w.slots {
			if s.held != nil {
				require.NoError(t, b.remove(s.held))
			}
			require.NoError(t, s.netns.Destroy())
		}
		for _, a := range w.given {
			given++
			require.NoError(t, b.remove(a))
		}
	}
	t.Logf("%d operations acknowledged, %d lost; in the end %d allocations worked, %d were given up",
		b.acknowledged.Load(), b.lost.Load(), working, given)
	require.Empty(t, b.wrong, "%d errors are not those of a daemon that was killed", len(b.wrong))
	require.Positive(t, b.lost.Load(), "at least one kill hit an operation")
	require.Positive(t, working)
	testbed.Settle(t, b.d.client())
	records, err := b.d.client().List(context.Background())
	require.NoError(t, err)
	require.Empty(t, records)
	b.d.term()
}

// works checks an allocation's addresses, its port and its CHECK.
func (b *barrage) works(a *held) {
	t := b.h.T
	require.NoError(t, b.confirm(a))
	require.Len(t, a.addresses, 2)
	for _, address := range a.addresses {
		testbed.RequireAnswer(t, "", "tcp", testbed.HostPort(address, 80), a.name)
	}
	for _, port := range a.Ports {
		for _, address := range []netip.Prefix{testhost.Host4, testhost.Host6} {
			testbed.RequireAnswer(t, b.h.Outside.Path(), "tcp", testbed.HostPort(address, port.Value), a.name)
		}
	}
}
