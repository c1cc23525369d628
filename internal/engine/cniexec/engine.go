// Package cniexec is the engine that runs plugin binaries through
// containerd/go-cni, so that any CNI plugin works. It adds the guards and
// workarounds that an embedding process needs:
//
//   - Every operation loads an instance of its own from the exact bytes of the
//     configuration. Nothing is ever reloaded in place, so a broken
//     configuration cannot replace a valid one, and a plugin that hangs holds
//     no lock that another operation needs.
//   - runner.go runs each plugin in a process group of its own.
//   - guard.go enforces the deadline even if a plugin leaves children running,
//     and turns a panic into an error.
//   - cache.go keeps libcni's result cache empty between operations.
//   - chain.go repeats a DEL plugin by plugin if go-cni hid its error or stopped
//     at it.
package cniexec

import (
	"context"
	"errors"
	"fmt"
	"slices"

	gocni "github.com/containerd/go-cni"
	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// Engine implements engine.Engine. The zero value is ready.
type Engine struct{}

var _ engine.Engine = Engine{}

// load makes the go-cni instance of one operation. The order of the options
// matters: a conflist takes the plugin directories and the prefix that were set
// before it.
func load(r *engine.Request, run *runner) (gocni.CNI, error) {
	opts := []gocni.Opt{
		gocni.WithInterfacePrefix(r.InterfacePrefix),
		withRunner(run, r.Path()),
		gocni.WithMinNetworkCount(len(r.Attachments)),
	}
	for _, a := range r.Attachments {
		if len(a.Network.List.Plugins) == 0 { // go-cni would panic
			return nil, fmt.Errorf("network %q: no plugins", a.Network.Name)
		}
		opts = append(opts, gocni.WithConfListBytes(a.Network.Bytes))
	}
	c, err := gocni.New(opts...)
	if err != nil {
		return nil, fmt.Errorf("load networks of allocation %q: %w", r.ID, err)
	}
	return c, nil
}

// options are the arguments of the request. go-cni keeps CNI_ARGS in a map and
// would shuffle them; since libcni joins them unquoted, all of them fit into
// the value of the first.
func options(r *engine.Request) []gocni.NamespaceOpts {
	var opts []gocni.NamespaceOpts
	if len(r.Args) > 0 {
		key, value := r.Args[0][0], r.Args[0][1]
		for _, kv := range r.Args[1:] {
			value += ";" + kv[0] + "=" + kv[1]
		}
		opts = append(opts, gocni.WithArgs(key, value))
	}
	for name, value := range r.Capabilities {
		opts = append(opts, gocni.WithCapability(name, value))
	}
	return opts
}

// Add implements engine.Engine. The networks are attached one after the other,
// as the specification demands of one container.
func (Engine) Add(ctx context.Context, r *engine.Request) ([]*types100.Result, error) {
	outer := r.Netns
	r = r.ForBinaries()
	run := &runner{}
	c, err := load(r, run)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", engine.ErrNothingDone, err)
	}
	// libcni writes to what is there, wherever it leads.
	if err := dropCache(r); err != nil {
		return nil, fmt.Errorf("ADD allocation %q: %w: %w", r.ID, engine.ErrNothingDone, err)
	}
	var res *gocni.Result
	err = guard(ctx, r, "ADD", func(ctx context.Context) error {
		var err error
		res, err = c.SetupSerially(ctx, r.ID, r.Netns, options(r)...)
		return err
	})
	cached, cacheErr := takeCache(r)
	for i, result := range cached {
		cached[i] = pluginexec.InNetns(result, r.Netns, outer)
	}
	if err != nil {
		if errors.Is(err, gocni.ErrInvalidResult) {
			err = fmt.Errorf("%w: %w", engine.ErrInvalidResult, err)
		}
		if ctx.Err() == nil { // else a plugin may be at work yet
			err = run.ended(r, err)
		}
		return cached, fmt.Errorf("ADD allocation %q: %w", r.ID, err)
	}
	// Raw keeps what the plugins said; go-cni's own result mixes up interfaces
	// of the same name.
	results := slices.Clone(res.Raw())
	for i, result := range results {
		results[i] = pluginexec.InNetns(result, r.Netns, outer)
	}
	return results, cacheErr
}

// Check implements engine.Engine.
func (Engine) Check(ctx context.Context, r *engine.Request) error {
	r = r.ForBinaries()
	c, err := load(r, &runner{})
	if err != nil {
		return err
	}
	if err := lendCache(r); err != nil {
		return err
	}
	err = guard(ctx, r, "CHECK", func(ctx context.Context) error {
		return c.Check(ctx, r.ID, r.Netns, options(r)...)
	})
	err = errors.Join(err, dropCache(r))
	if errors.Is(err, libcni.ErrorCheckNotSupp) {
		return fmt.Errorf("CHECK allocation %q: %w: %w", r.ID, engine.ErrCheckUnsupported, err)
	}
	if err != nil {
		return fmt.Errorf("CHECK allocation %q: %w", r.ID, err)
	}
	return nil
}

// Del implements engine.Engine. go-cni's Remove takes an error that contains
// "not found" for success and leaves the networks behind a failed one alone;
// libcni removes its cache entry only after the last plugin of a network
// succeeded, so the entries that are left tell what Remove really did. Those
// networks are detached plugin by plugin.
func (Engine) Del(ctx context.Context, r *engine.Request) error {
	if r.Interrupted {
		if err := pluginexec.KillOrphans(r.Work()); err != nil {
			return fmt.Errorf("DEL allocation %q: %w", r.ID, err)
		}
	}
	r = r.ForBinaries()
	pending, removeErr := remove(ctx, r)
	if ctx.Err() != nil {
		return fmt.Errorf("DEL allocation %q: %w", r.ID, errors.Join(removeErr, ctx.Err()))
	}
	var errs []error
	for _, i := range slices.Backward(pending) {
		errs = append(errs, delChain(ctx, r, i))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("DEL allocation %q: %w", r.ID, err)
	}
	return nil
}

// remove runs go-cni's Remove where every result is known, and returns the
// indexes of the attachments that are not detached after it.
func remove(ctx context.Context, r *engine.Request) (pending []int, err error) {
	all := make([]int, len(r.Attachments))
	for i := range all {
		all[i] = i
	}
	if slices.ContainsFunc(r.Attachments, func(a engine.Attachment) bool { return a.Result == nil }) {
		return all, dropCache(r)
	}
	c, err := load(r, &runner{})
	if err == nil {
		err = lendCache(r)
	}
	if err != nil {
		return all, errors.Join(err, dropCache(r))
	}
	err = guard(ctx, r, "DEL", func(ctx context.Context) error {
		return c.Remove(ctx, r.ID, r.Netns, options(r)...)
	})
	pending = slices.DeleteFunc(all, func(i int) bool { return !cached(r, i) })
	return pending, errors.Join(err, dropCache(r))
}

// Binaries implements engine.Engine: all plugins are.
func (Engine) Binaries(n *conflist.Network) []string {
	var types []string
	for _, p := range n.List.Plugins {
		types = append(types, p.Network.Type)
		if ipam := p.Network.IPAM.Type; ipam != "" {
			types = append(types, ipam)
		}
	}
	return types
}

// Status implements engine.Engine. It does not go through go-cni, whose Status
// knows no deadline.
func (Engine) Status(ctx context.Context, dirs []string, n *conflist.Network) error {
	c := libcni.NewCNIConfig(dirs, &pluginexec.Exec{})
	if err := c.GetStatusNetworkList(ctx, n.List); err != nil {
		return fmt.Errorf("STATUS of network %q: %w", n.Name, err)
	}
	return nil
}

// GC implements engine.Engine; go-cni has none. libcni's own share of a GC, to
// DEL what its cache holds and the list does not, finds an empty directory: the
// records say what there is.
func (Engine) GC(ctx context.Context, dirs []string, n *conflist.Network, valid []types.GCAttachment) error {
	if valid == nil {
		valid = []types.GCAttachment{} // null would not be a list
	}
	c := libcni.NewCNIConfigWithCacheDir(dirs, engine.NoCache, &pluginexec.Exec{})
	if err := c.GCNetworkList(ctx, n.List, &libcni.GCArgs{ValidAttachments: valid}); err != nil {
		return fmt.Errorf("GC of network %q: %w", n.Name, err)
	}
	return nil
}
