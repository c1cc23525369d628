package configurator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/portmap"
)

var (
	slow    = Bandwidth{IngressRate: 8_000_000, IngressBurst: 800_000, EgressRate: 16_000_000, EgressBurst: 400_000}
	slower  = Bandwidth{IngressRate: 800_000, IngressBurst: 160_000, EgressRate: 1_600_000, EgressBurst: 80_000}
	sending = Bandwidth{EgressRate: 1_600_000, EgressBurst: 80_000}
)

const shaping = `{"type":"bandwidth","capabilities":{"bandwidth":true}}`

// shapedHost is updateHost on a network with the plugin bandwidth, on which the allocation is
// limited.
func shapedHost(t *testing.T, limits *Bandwidth) (h *testHost, a Allocation) {
	t.Helper()
	h, _ = nativeHost(t, "1.0.0", `{"type":"portmap","capabilities":{"portMappings":true}}`, shaping)
	a = h.alloc("a")
	a.Ports, a.Bandwidth = []portmap.Port{tcpPort(8080, 80)}, limits
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	t.Cleanup(func() {
		a.Wait = true
		require.NoError(t, h.Teardown(context.Background(), a))
		h.requireNoRecords()
		require.Empty(t, ratesOf(t))
	})
	return h, a
}

// ratesOf returns the limits that the kernel has, in bits per second: one line for each link of
// the host with a token bucket, sorted, without the names.
func ratesOf(t *testing.T) (rates []string) {
	t.Helper()
	links, err := retry.List(netlink.LinkList)
	require.NoError(t, err)
	for _, l := range links {
		qdiscs, err := netlink.QdiscList(l)
		require.NoError(t, err)
		for _, q := range qdiscs {
			if tbf, ok := q.(*netlink.Tbf); ok {
				rates = append(rates, fmt.Sprint(l.Type(), " ", 8*tbf.Rate))
			}
		}
		if l.Type() == "ifb" && !slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == "tbf" }) {
			rates = append(rates, "ifb")
		}
	}
	slices.Sort(rates)
	return rates
}

// ratesWith are the rates of one allocation with limits.
func ratesWith(b Bandwidth) (rates []string) {
	if b.EgressRate > 0 {
		rates = append(rates, fmt.Sprint("ifb ", b.EgressRate))
	}
	if b.IngressRate > 0 {
		rates = append(rates, fmt.Sprint("veth ", b.IngressRate))
	}
	return rates
}

// requireLimits requires that allocation a is healthy with limits, for another process as well.
func (h *testHost) requireLimits(a Allocation, limits Bandwidth) {
	h.t.Helper()
	require.Equal(h.t, ratesWith(limits), ratesOf(h.t))
	r, err := h.Get(h.t.Context(), a.ID)
	require.NoError(h.t, err)
	if limits == (Bandwidth{}) {
		require.Nil(h.t, r.Bandwidth)
	} else {
		require.Equal(h.t, &limits, r.Bandwidth)
	}
	require.Equal(h.t, limits.EgressRate > 0, strings.Contains(string(r.Networks[0].Result), `"bwp`), "%s", r.Networks[0].Result)
	require.NoError(h.t, h.CheckOnly(h.t.Context(), a))
	require.NoError(h.t, h.restarted().CheckOnly(h.t.Context(), a))
	recorded, err := h.store.Get(a.ID)
	require.NoError(h.t, err)
	require.Nil(h.t, recorded.Update)
}

// TestUpdateBandwidth: limits change, appear and disappear while an allocation is set up. A
// later Setup requests those that it has then.
func TestUpdateBandwidth(t *testing.T) {
	for _, version := range []string{"0.4.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			h, _ := nativeHost(t, version, shaping)
			a := h.alloc("a")
			first, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			plain, err := h.store.Get(a.ID)
			require.NoError(t, err)
			seen := map[string]bool{first.Revision: true}
			for _, limits := range []Bandwidth{slow, slower, sending, slow, {IngressRate: 8000, IngressBurst: 8000}, slower, {}} {
				old := a
				s, err := h.Update(t.Context(), a.ID, Change{Bandwidth: &limits})
				require.NoError(t, err)
				require.False(t, seen[s.Revision])
				seen[s.Revision] = true
				h.requireLimits(a, limits)
				_, err = h.Setup(t.Context(), old)
				require.ErrorIs(t, err, ErrDifferent)
				a.Bandwidth = &limits
				for _, c := range []*Configurator{h.Configurator, h.restarted()} {
					again, err := c.Setup(t.Context(), a)
					require.NoError(t, err)
					require.False(t, again.SetUpAgain)
					require.Equal(t, s.Revision, again.Revision)
				}
				report, err := h.Repair(t.Context())
				require.NoError(t, err)
				require.Equal(t, []string{"a"}, report.Healthy)
				same, err := h.Update(t.Context(), a.ID, Change{Bandwidth: &limits})
				require.NoError(t, err)
				require.Equal(t, s.Revision, same.Revision, "nothing was to be changed")
			}
			a.Bandwidth = nil
			_, err = h.Setup(t.Context(), a)
			require.NoError(t, err, "no limits are the same as limits that limit nothing")
			now, err := h.store.Get(a.ID)
			require.NoError(t, err)
			require.Equal(t, string(plain.Attachments[0].Result), string(now.Attachments[0].Result))

			_, err = h.Update(t.Context(), a.ID, Change{Bandwidth: &slow})
			require.NoError(t, err)
			require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a", Wait: true}))
			require.Empty(t, ratesOf(t))
			h.requireNoRecords()
		})
	}
}

// TestUpdateOfAll: host ports, labels and bandwidth change together, or not at all.
func TestUpdateOfAll(t *testing.T) {
	o := &observed{}
	h, a := shapedHost(t, &slow)
	h.cfg.Observer = o
	s, err := h.Update(t.Context(), a.ID, Change{
		Unpublish: a.Ports, Publish: []portmap.Port{tcpPort(8081, 80)}, Labels: map[string]*string{"app": new("web")}, Bandwidth: &sending,
	})
	require.NoError(t, err)
	require.Equal(t, []string{
		"update/lock a  : ok", "update/check a net native: ok", "update/reserve a net native: ok", "update/publish a net native: ok", "update/limit a net native: ok",
		"update/record a net native: ok", "update/ a net native: ok",
	}, o.take())
	require.Len(t, s.Ports, 1)
	require.Equal(t, 8081, s.Ports[0].HostPort)
	require.Len(t, published(t), 1)
	h.requireLimits(a, sending)

	_, err = h.Update(t.Context(), a.ID, Change{Labels: map[string]*string{"app": new("db")}, Bandwidth: &slow})
	require.NoError(t, err)
	require.NotContains(t, strings.Join(o.take(), " "), "publish", "the host ports stay")
	require.Len(t, published(t), 1)
	h.requireLimits(a, slow)
	r, err := h.Get(t.Context(), a.ID)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"app": "db"}, r.Labels)
	require.Len(t, r.Ports, 1)
}

// TestUpdateBandwidthRefused: what cannot be changed is refused, and nothing has changed.
func TestUpdateBandwidthRefused(t *testing.T) {
	h, a := shapedHost(t, &slow)
	before, err := h.store.Get(a.ID)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		change Change
		want   error
	}{
		"no burst":       {Change{Bandwidth: &Bandwidth{IngressRate: 8000}}, ErrInvalidAllocation},
		"too slow":       {Change{Bandwidth: &Bandwidth{EgressRate: 1, EgressBurst: 1}}, ErrInvalidAllocation},
		"with a port":    {Change{Publish: []portmap.Port{tcpPort(8080, 81)}, Bandwidth: &slower}, portmap.ErrConflict},
		"other revision": {Change{Revision: "0-0", Bandwidth: &slower}, ErrRevision},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.Update(t.Context(), a.ID, c.change)
			require.ErrorIs(t, err, c.want)
			h.requireLimits(a, slow)
			now, err := h.store.Get(a.ID)
			require.NoError(t, err)
			require.Equal(t, before, now)
		})
	}
}

// TestCannotUpdateBandwidth: only the native plugin without limits of its own can change them.
func TestCannotUpdateBandwidth(t *testing.T) {
	for name, c := range map[string]struct {
		plugin string
		want   error
	}{
		"undeclared":    {`{"type":"bandwidth"}`, ErrUnserved},
		"no plugin":     {`{"type":"firewall"}`, ErrUnserved},
		"configuration": {`{"type":"bandwidth","capabilities":{"bandwidth":true},"ingressRate":8000,"ingressBurst":8000}`, ErrCannotUpdate},
		"other plugin":  {`{"type":"tuning","capabilities":{"bandwidth":true}}`, ErrCannotUpdate},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := nativeHost(t, "1.0.0", c.plugin)
			a := h.alloc("a")
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			before := ratesOf(t)
			_, err = h.Update(t.Context(), a.ID, Change{Bandwidth: &slow})
			require.ErrorIs(t, err, c.want)
			require.Equal(t, before, ratesOf(t))
			require.NoError(t, h.CheckOnly(t.Context(), a))
			require.NoError(t, h.Teardown(t.Context(), a))
		})
	}

	binary := newTestHost(t)
	binary.plain("net", "bandwidth")
	b := binary.alloc("b")
	_, err := binary.Setup(t.Context(), b)
	require.NoError(t, err)
	_, err = binary.Update(t.Context(), b.ID, Change{Bandwidth: &slow})
	require.ErrorIs(t, err, ErrCannotUpdate)
	require.NoError(t, binary.Teardown(t.Context(), b))
}

// TestUpdateBandwidthBesideIPTables: host ports that cannot be changed do not matter.
func TestUpdateBandwidthBesideIPTables(t *testing.T) {
	privhost.Require(t, "iptables")
	h, _ := nativeHost(t, "1.0.0", `{"type":"portmap","capabilities":{"portMappings":true},"backend":"iptables"}`, shaping)
	a := h.alloc("a")
	a.Ports = []portmap.Port{tcpPort(8080, 80)}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	_, err = h.Update(t.Context(), a.ID, Change{Bandwidth: &slow})
	require.NoError(t, err)
	h.requireLimits(a, slow)
	require.NoError(t, h.Teardown(t.Context(), a))
	require.Empty(t, ratesOf(t))
}

// TestUpdateBandwidthUnserved: limits that no plugin sets can be dropped.
func TestUpdateBandwidthUnserved(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0")
	h.cfg.AllowUnserved = true
	a := h.alloc("a")
	a.Bandwidth = &slow
	s, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, []string{"bandwidth"}, s.Unserved)
	_, err = h.Update(t.Context(), a.ID, Change{Bandwidth: &slower})
	require.ErrorIs(t, err, ErrUnserved)
	s, err = h.Update(t.Context(), a.ID, Change{Bandwidth: &Bandwidth{}})
	require.NoError(t, err)
	require.Empty(t, s.Unserved)
	h.requireLimits(a, Bandwidth{})
	require.NoError(t, h.Teardown(t.Context(), a))
}

// failingLimit is an engine whose Limit fails: before it changes anything, or afterwards.
type failingLimit struct {
	nativeEngine
	times int
	after bool
}

func (f *failingLimit) Limit(ctx context.Context, r *engine.Request) ([]*types100.Result, error) {
	if f.times--; f.times < 0 {
		return f.nativeEngine.Limit(ctx, r)
	}
	if f.after {
		if _, err := f.nativeEngine.Limit(ctx, r); err != nil {
			return nil, err
		}
	}
	return nil, errors.New("no memory")
}

// unfinished are ways to continue after an update that was not finished.
var unfinished = map[string]func(h *testHost, a Allocation) error{
	"recover": func(h *testHost, _ Allocation) error { _, err := h.Recover(h.t.Context()); return err },
	"repair":  func(h *testHost, _ Allocation) error { _, err := h.Repair(h.t.Context()); return err },
	"setup":   func(h *testHost, a Allocation) error { _, err := h.Setup(h.t.Context(), a); return err },
	"check":   func(h *testHost, a Allocation) error { _, err := h.CheckAndRepair(h.t.Context(), a.ID); return err },
	"update": func(h *testHost, a Allocation) error {
		_, err := h.Update(h.t.Context(), a.ID, Change{})
		return err
	},
}

// TestUpdateBandwidthUndone: an update that fails leaves what the allocation had before. If that
// cannot be restored either, what looks at the allocation next does it.
func TestUpdateBandwidthUndone(t *testing.T) {
	names := slices.Sorted(maps.Keys(unfinished))
	for k, after := range []bool{false, true} {
		for i, name := range names {
			for _, times := range []int{1, 2} {
				if times == 1 && i > 0 {
					continue // nothing is left to be finished
				}
				t.Run(fmt.Sprint(name, " after ", times, " ", after), func(t *testing.T) {
					if times == 2 {
						skip.InTurn(t, i+k, 2)
					}
					h, a := shapedHost(t, &slow)
					ports := published(t)
					h.native = &failingLimit{h.native, times, after}
					_, err := h.Update(t.Context(), a.ID, Change{
						Unpublish: a.Ports, Publish: []portmap.Port{tcpPort(8081, 80)}, Labels: map[string]*string{"app": new("web")},
						Bandwidth: &Bandwidth{IngressRate: 800_000, IngressBurst: 160_000},
					})
					require.ErrorContains(t, err, "no memory")
					if times == 2 {
						require.NoError(t, unfinished[name](h, a))
					}
					h.requireLimits(a, slow)
					require.Equal(t, ports, published(t))
					r, err := h.Get(t.Context(), a.ID)
					require.NoError(t, err)
					require.Empty(t, r.Labels)
				})
			}
		}
	}
}

// TestUpdateBandwidthInterrupted: an update whose process has died is finished. Setup must then
// request what the update aimed at.
func TestUpdateBandwidthInterrupted(t *testing.T) {
	for name, finish := range unfinished {
		t.Run(name, func(t *testing.T) {
			h, a := shapedHost(t, &slow)
			h.changeRecord(a.ID, func(r *record.Record) {
				r.Update = &record.Aim{Requested: r.RequestedPorts, Ports: r.Ports, KeepsPorts: true, Bandwidth: &slower}
			})
			h.requireInterrupted(a)
			if name == "setup" {
				_, err := h.Setup(t.Context(), a)
				require.ErrorIs(t, err, ErrDifferent)
			}
			a.Bandwidth = &slower
			require.NoError(t, finish(h, a))
			h.requireLimits(a, slower)
			require.Len(t, published(t), 1)
		})
	}
}

// TestUpdateBandwidthOfBroken: an allocation without its interface is not changed. If an update
// cannot be finished, Setup sets the allocation up again as the update aims.
func TestUpdateBandwidthOfBroken(t *testing.T) {
	h, a := shapedHost(t, &slow)
	veth := func() netlink.Link {
		for _, l := range hostLinks(t) {
			if owner, ok := names.ParseOwner(l.Attrs().Alias); ok && owner.Instance == h.instance && l.Type() == "veth" {
				return l
			}
		}
		return nil
	}
	require.NoError(t, netlink.LinkDel(veth()))
	before, err := h.store.Get(a.ID)
	require.NoError(t, err)
	_, err = h.Update(t.Context(), a.ID, Change{Bandwidth: &slower})
	require.ErrorContains(t, err, `find interface "eth0"`)
	now, err := h.store.Get(a.ID)
	require.NoError(t, err)
	require.Equal(t, before, now)
	s, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.True(t, s.SetUpAgain)
	h.requireLimits(a, slow)

	// An update from slow to slower has replaced host port 8080 by 8081.
	native := h.native
	h.native = &failingLimit{native, 2, false}
	_, err = h.Update(t.Context(), a.ID, Change{Unpublish: a.Ports, Publish: []portmap.Port{tcpPort(8081, 80)}, Bandwidth: &slower})
	require.ErrorContains(t, err, "no memory")
	h.native = native
	h.changeRecord(a.ID, func(r *record.Record) {
		aim := &record.Aim{Ports: []portmap.Mapping{{HostPort: 8081, ContainerPort: 80, Protocol: "tcp"}}, Requested: []portmap.Port{tcpPort(8081, 80)}}
		aim.Bandwidth = &slower
		r.Update = aim
	})
	require.NoError(t, netlink.LinkDel(veth()))
	_, err = h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrDifferent)
	again := a
	again.Ports, again.Bandwidth = []portmap.Port{tcpPort(8081, 80)}, &slower
	s, err = h.Setup(t.Context(), again)
	require.NoError(t, err)
	require.True(t, s.SetUpAgain)
	require.Len(t, s.Ports, 1)
	require.Len(t, published(t), 1)
	h.requireLimits(a, slower)
	b := h.alloc("b")
	b.Ports = a.Ports
	_, err = h.Setup(t.Context(), b)
	require.NoError(t, err, "the host port from before is free")
	require.NoError(t, h.Teardown(t.Context(), b))
}

// TestTeardownOfUnfinishedUpdate: nothing is left of an allocation whose update was not finished.
func TestTeardownOfUnfinishedUpdate(t *testing.T) {
	for name, remove := range map[string]func(h *testHost, a Allocation) error{
		"teardown":      func(h *testHost, a Allocation) error { return h.Teardown(h.t.Context(), a) },
		"teardown wait": func(h *testHost, a Allocation) error { a.Wait = true; return h.Teardown(h.t.Context(), a) },
		"gc":            func(h *testHost, _ Allocation) error { _, err := h.GC(h.t.Context(), nil); return err },
	} {
		for from, limits := range map[string]*Bandwidth{"no limits": nil, "limits": &slow} {
			t.Run(name+" from "+from, func(t *testing.T) {
				h, a := shapedHost(t, limits)
				h.native = &failingLimit{h.native, 2, true}
				change := Change{Publish: []portmap.Port{tcpPort(8081, 80)}, Bandwidth: &slower}
				if limits != nil {
					change.Bandwidth = &Bandwidth{}
				}
				_, err := h.Update(t.Context(), a.ID, change)
				require.ErrorContains(t, err, "no memory")
				require.NoError(t, remove(h, a))
				h.settle()
				h.requireNoRecords()
				require.Empty(t, ratesOf(t))
				require.Empty(t, published(t))
			})
		}
	}
}

// TestUpdateBandwidthOfAttachments: limits are those of every network with the plugin, also of
// one that is attached later.
func TestUpdateBandwidthOfAttachments(t *testing.T) {
	h, a := shapedHost(t, nil)
	h.file("more.conflist", `{"cniVersion":"1.0.0","name":"more","plugins":[
		{"type":"ptp","ipam":{"type":"host-local","dataDir":"`+t.TempDir()+`","subnet":"10.78.0.0/24"}},`+shaping+`]}`)
	_, err := h.Update(t.Context(), a.ID, Change{Bandwidth: &slow})
	require.NoError(t, err)
	_, err = h.Attach(t.Context(), a.ID, "more", AttachOptions{})
	require.NoError(t, err)
	twice := func(b Bandwidth) []string {
		rates := append(ratesWith(b), ratesWith(b)...)
		slices.Sort(rates)
		return rates
	}
	require.Equal(t, twice(slow), ratesOf(t))
	for _, limits := range []Bandwidth{slower, {}, sending} {
		_, err = h.Update(t.Context(), a.ID, Change{Bandwidth: &limits})
		require.NoError(t, err)
		require.Equal(t, twice(limits), ratesOf(t))
		require.NoError(t, h.CheckOnly(t.Context(), a))
	}
	_, err = h.Detach(t.Context(), a.ID, "eth1", "")
	require.NoError(t, err)
	h.requireLimits(a, sending)
}

// TestUpdateBandwidthAfterDetach: limits that no network sets any more can be dropped, so that
// a Setup can request what the allocation has.
func TestUpdateBandwidthAfterDetach(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0")
	h.file("more.conflist", `{"cniVersion":"1.0.0","name":"more","plugins":[
		{"type":"ptp","ipam":{"type":"host-local","dataDir":"`+t.TempDir()+`","subnet":"10.78.0.0/24"}},`+shaping+`]}`)
	a := h.alloc("a")
	a.Networks, a.Bandwidth = []string{"net", "more"}, &slow
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, ratesWith(slow), ratesOf(t))
	_, err = h.Detach(t.Context(), a.ID, "eth1", "")
	require.NoError(t, err)
	require.Empty(t, ratesOf(t))
	a.Networks = []string{"net"}
	_, err = h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrDifferent)
	a.Bandwidth = nil // the limits have ended with the network
	again, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.False(t, again.SetUpAgain)
	r, err := h.Get(t.Context(), a.ID)
	require.NoError(t, err)
	require.Nil(t, r.Bandwidth)
	require.NoError(t, h.Teardown(t.Context(), a))
}
