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

// load creates the go-cni instance of one operation. The order of the options matters:
// WithConfListBytes uses the plugin directories and the prefix that were set before.
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

// options returns the CNI_ARGS and capability arguments of the request as go-cni
// options. go-cni keeps CNI_ARGS in a map, which loses their order. libcni joins key
// and value without quoting, so all arguments are passed as the value of the first one.
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

// Add implements engine.Engine. The networks are attached one after the other, as the
// specification requires for one container.
func (Engine) Add(ctx context.Context, r *engine.Request) ([]*types100.Result, error) {
	outer := r.Netns
	r = r.ForBinaries()
	run := &runner{}
	c, err := load(r, run)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", engine.ErrNothingDone, err)
	}
	// libcni writes to an existing entry, and follows a symbolic link.
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
		if ctx.Err() == nil { // else a plugin may still be running
			err = run.ended(r, err)
		}
		return cached, fmt.Errorf("ADD allocation %q: %w", r.ID, err)
	}
	// Raw has the results of the plugins; go-cni's own result merges interfaces with
	// the same name.
	results := slices.Clone(res.Raw())
	for i, result := range results {
		results[i] = pluginexec.InNetns(result, r.Netns, outer)
	}
	return results, cacheErr
}

// Check implements engine.Engine.
func (Engine) Check(ctx context.Context, r *engine.Request) error {
	r = r.ForBinaries()
	run := &runner{request: r}
	c, err := load(r, run)
	if err != nil {
		return err
	}
	if err := writeCache(r); err != nil {
		return err
	}
	err = guard(ctx, r, "CHECK", func(ctx context.Context) error {
		return c.Check(ctx, r.ID, r.Netns, options(r)...)
	})
	if err = errors.Join(err, dropCache(r)); err == nil && run.unchecked != nil {
		err = fmt.Errorf("%w: %w", engine.ErrCheckUnsupported, run.unchecked)
	}
	if err != nil {
		return fmt.Errorf("CHECK allocation %q: %w", r.ID, err)
	}
	return nil
}

// Del implements engine.Engine. go-cni's Remove treats an error that contains "not
// found" as success, and after a failed network it skips the remaining ones. libcni
// removes a cache entry only after all plugins of the network succeeded, so the
// remaining entries show which networks are still attached. Del then runs DEL of their
// plugins one by one.
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

// remove runs go-cni's Remove if every result is known. It returns the indexes of the
// attachments that are still attached.
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
		err = writeCache(r)
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

// Binaries implements engine.Engine. This engine runs all plugins as binaries.
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

// Status implements engine.Engine. It does not use go-cni, whose Status has no
// deadline.
func (Engine) Status(ctx context.Context, dirs []string, n *conflist.Network) error {
	c := libcni.NewCNIConfig(dirs, &pluginexec.Exec{})
	if err := c.GetStatusNetworkList(ctx, n.List); err != nil {
		return fmt.Errorf("STATUS of network %q: %w", n.Name, err)
	}
	return nil
}

// GC implements engine.Engine; go-cni has no GC. libcni's GC also runs DEL of cached
// attachments that are not in the list. Here its cache is empty, because the records
// have the attachments.
func (Engine) GC(ctx context.Context, dirs []string, n *conflist.Network, valid []types.GCAttachment) error {
	if valid == nil {
		valid = []types.GCAttachment{} // encoded as [] instead of null
	}
	c := libcni.NewCNIConfigWithCacheDir(dirs, engine.NoCache, &pluginexec.Exec{})
	return c.GCNetworkList(ctx, n.List, &libcni.GCArgs{ValidAttachments: valid})
}
