package object

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// fakeNetns is a network namespace without a kernel.
type fakeNetns struct{ awaited int }

func (*fakeNetns) LinkState(string) (*rtnl.LinkState, error) { return &rtnl.LinkState{Index: 1}, nil }
func (*fakeNetns) LinkStateAt(int) (*rtnl.LinkState, error)  { return &rtnl.LinkState{Index: 1}, nil }
func (*fakeNetns) Addresses(int) ([]netlink.Addr, error)     { return nil, nil }
func (*fakeNetns) Apply(*rtnl.Batch) error                   { return nil }
func (*fakeNetns) Do(do func() error) error                  { return do() }
func (f *fakeNetns) AwaitReception(context.Context, int, ...net.IP) error {
	f.awaited++
	return nil
}

// wrong is an object that differs until it was changed some times.
type wrong struct {
	text    string
	changes int // until it is right; -1 for always
	fails   error
	settles error
	made    int
}

func (w *wrong) Compare(context.Context, *View) ([]Difference, error) {
	if w.changes == w.made {
		return nil, nil
	}
	d := Difference{Finding: errors.New(w.text), Do: func() error { w.made++; return w.fails }}
	if w.settles != nil {
		d.Settle = func(context.Context) error { return w.settles }
	}
	return []Difference{d}, nil
}

// hopeless is an object that nothing here can put right.
type hopeless struct {
	harmless, blocks bool
	err              error
}

func (h hopeless) Compare(context.Context, *View) ([]Difference, error) {
	return []Difference{{Finding: errors.New("hopeless"), Harmless: h.harmless, Blocks: h.blocks}}, h.err
}

// TestRestore: differences are changed until none is left, and what cannot be changed is told.
func TestRestore(t *testing.T) {
	for name, test := range map[string]struct {
		objects []Object
		changed bool
		err     string // "" for none
		made    int    // changes of the first object
	}{
		"right":                   {objects: []Object{&wrong{}}},
		"wrong":                   {objects: []Object{&wrong{text: "a", changes: 1}}, changed: true, made: 1},
		"shows more afterwards":   {objects: []Object{&wrong{text: "a", changes: 3}}, changed: true, made: 3},
		"never right":             {objects: []Object{&wrong{text: "a", changes: -1}}, changed: true, err: "a", made: rounds},
		"cannot be changed":       {objects: []Object{&wrong{text: "a", changes: -1, fails: errors.New("refused")}}, err: "refused", made: 1},
		"an error without effect": {objects: []Object{&wrong{text: "a", changes: 1, fails: errors.New("refused")}}, changed: true, made: 1},
		"must not stay":           {objects: []Object{&wrong{text: "a", changes: -1, settles: errors.New("taken")}}, err: "taken", made: 1},
		"hopeless":                {objects: []Object{&wrong{text: "a", changes: 1}, hopeless{}}, changed: true, err: "hopeless", made: 1},
		"harmless":                {objects: []Object{&wrong{text: "a", changes: 1}, hopeless{harmless: true}}, changed: true, made: 1},
		"blocks what follows":     {objects: []Object{hopeless{blocks: true}, &wrong{text: "a", changes: 1, fails: errors.New("refused")}}, err: "hopeless"},
		"not known":               {objects: []Object{&wrong{text: "a", changes: 1}, hopeless{err: errors.New("not known")}}, err: "not known"},
		"required":                {objects: append(Required(&wrong{text: "a", changes: 1}), hopeless{}), err: "hopeless"},
	} {
		v := &View{netns: &fakeNetns{}, links: map[string]*rtnl.LinkState{}}
		changed, err := Restore(t.Context(), v, test.objects...)
		require.Equal(t, test.changed, changed, name)
		if test.err == "" {
			require.NoError(t, err, name)
		} else {
			require.EqualError(t, err, test.err, name)
		}
		if w, ok := test.objects[0].(*wrong); ok {
			require.Equal(t, test.made, w.made, name)
		}
	}
}

// TestRequired: what is only required is told, and never changed.
func TestRequired(t *testing.T) {
	w := &wrong{text: "a", changes: 1}
	v := &View{netns: &fakeNetns{}, links: map[string]*rtnl.LinkState{}}
	require.EqualError(t, Check(t.Context(), v, Required(w)...), "a")
	require.NoError(t, Make(t.Context(), v, Required(w)...))
	changed, err := Restore(t.Context(), v, Required(w)...)
	require.NoError(t, err)
	require.False(t, changed)
	require.Zero(t, w.made)
}

// TestRestoreAwaits: after a change, packets for the addresses have to be accepted.
func TestRestoreAwaits(t *testing.T) {
	for _, changes := range []int{0, 1} {
		n := &fakeNetns{}
		v := &View{netns: n, sandbox: &rtnl.Sandbox{}, links: map[string]*rtnl.LinkState{}}
		_, err := Restore(t.Context(), v, &wrong{text: "a", changes: changes}, &Addresses{Link: "eth0"})
		require.NoError(t, err)
		require.Equal(t, changes, n.awaited)
	}
}
