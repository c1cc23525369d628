package configurator

import (
	"context"
	"errors"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/state/record"
)

// interceptedEngine is a native engine that calls functions of a test before DEL and after ADD.
type interceptedEngine struct {
	nativeEngine
	beforeDel func() error
	afterAdd  func()
}

func (e *interceptedEngine) Del(ctx context.Context, r *engine.Request) error {
	if err := e.beforeDel(); err != nil {
		return err
	}
	return e.nativeEngine.Del(ctx, r)
}

func (e *interceptedEngine) Add(ctx context.Context, r *engine.Request) ([]*types100.Result, error) {
	results, err := e.nativeEngine.Add(ctx, r)
	e.afterAdd()
	return results, err
}

// intercept replaces the native engine.
func (h *testHost) intercept() *interceptedEngine {
	e := &interceptedEngine{h.native, func() error { return nil }, func() {}}
	h.native = e
	return e
}

// detachHost is attachHost whose second network has addresses that no other test has: their links may
// still be there.
func detachHost(t *testing.T) (h *testHost, a Allocation, leases string) {
	t.Helper()
	leases = t.TempDir()
	h, a, _ = attachHost(t, `{"type":"ptp","ipMasq":true,"ipam":{"type":"host-local","dataDir":"`+leases+`","subnet":"10.76.0.0/24"}}`)
	return h, a, leases
}

// requireDetached fails unless the allocation has only its first interface, in the record and in
// the kernel.
func (h *testHost) requireDetached(a Allocation) {
	h.t.Helper()
	r, err := h.store.Get(a.ID)
	require.NoError(h.t, err)
	require.Nil(h.t, r.Pending)
	require.Len(h.t, r.Attachments, 1)
	requireInterfaces(h.t, a, "eth0")
}

// TestDetachOutlivesItsContext: a removal that is recorded goes on after the end of the context, as
// does the removal of an attachment whose Attach came too late.
func TestDetachOutlivesItsContext(t *testing.T) {
	h, a, leases := detachHost(t)
	_, err := h.Attach(t.Context(), "a", "more", AttachOptions{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	e := h.intercept()
	e.beforeDel = func() error { cancel(); return nil }
	_, err = h.Detach(ctx, "a", "eth1", "")
	require.NoError(t, err)
	h.requireDetached(a)

	ctx, cancel = context.WithCancel(t.Context())
	e.afterAdd = cancel
	_, err = h.Attach(ctx, "a", "more", AttachOptions{})
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, record.ErrUnfinished)
	h.requireDetached(a)
	h.end(a, leases)
}

// TestInterruptedDetachOutlivesTheContext of the operation that finishes it.
func TestInterruptedDetachOutlivesTheContext(t *testing.T) {
	h, a, leases := detachHost(t)
	_, err := h.Attach(t.Context(), "a", "more", AttachOptions{})
	require.NoError(t, err)
	h.changeRecord("a", func(r *record.Record) {
		r.Pending, r.Attachments, r.Requested = &r.Attachments[1], r.Attachments[:1], nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	h.intercept().beforeDel = func() error { cancel(); return nil }
	_, err = h.Update(ctx, "a", Change{})
	require.NoError(t, err)
	h.requireDetached(a)
	h.end(a, leases)
}

// TestDetachAgain: a Detach whose removal failed can be repeated, also with the revision on which it
// was based.
func TestDetachAgain(t *testing.T) {
	h, a, leases := detachHost(t)
	trouble := errors.New("trouble")
	e := h.intercept()
	for _, repeated := range []string{"", "before", "after"} {
		attached, err := h.Attach(t.Context(), "a", "more", AttachOptions{})
		require.NoError(t, err)
		e.beforeDel = func() error { return trouble }
		for range 2 {
			_, err = h.Detach(t.Context(), "a", "eth1", attached.Revision)
			require.ErrorIs(t, err, trouble)
			require.ErrorIs(t, err, ErrIncomplete)
			require.ErrorIs(t, err, record.ErrUnfinished)
		}
		r, err := h.Get(t.Context(), "a")
		require.NoError(t, err)
		require.NotEqual(t, attached.Revision, r.Revision)
		e.beforeDel = func() error { return nil }
		s, err := h.Detach(t.Context(), "a", "eth1", map[string]string{"before": attached.Revision, "after": r.Revision}[repeated])
		require.NoError(t, err)
		require.Equal(t, r.Revision, s.Revision)
		h.requireDetached(a)
		_, err = h.Detach(t.Context(), "a", "eth1", "")
		require.ErrorIs(t, err, ErrNotFound)
	}
	h.end(a, leases)
}

// TestDetachAgainOfAnother: an unfinished removal is finished, and what is requested is compared
// and removed as always.
func TestDetachAgainOfAnother(t *testing.T) {
	h, a, leases := detachHost(t)
	e := h.intercept()
	for _, c := range []struct {
		interfaceName, revision string
		want                    error
	}{{"eth1", "0-0", ErrRevision}, {"eth2", "", ErrNotFound}} {
		_, err := h.Attach(t.Context(), "a", "more", AttachOptions{})
		require.NoError(t, err)
		e.beforeDel = func() error { return errors.New("trouble") }
		_, err = h.Detach(t.Context(), "a", "eth1", "")
		require.ErrorIs(t, err, ErrIncomplete)
		e.beforeDel = func() error { return nil }
		_, err = h.Detach(t.Context(), "a", c.interfaceName, c.revision)
		require.ErrorIs(t, err, c.want)
		h.requireDetached(a)
	}
	h.end(a, leases)
}
