package client

import (
	"context"
	"errors"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/wire"
)

func pathOf(id string) string { return "/v1/allocs/" + segment(id) }

// segment is a name as one segment of a path, which the server is to judge, whatever
// it is.
func segment(name string) string {
	if strings.Trim(name, ".") == "" {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}

// Setup is that of a Configurator.
func (c *Client) Setup(ctx context.Context, a allocnet.Allocation) (*allocnet.Status, error) {
	var answer wire.Applied
	err := c.call(ctx, exchange{"PUT", pathOf(a.ID), a, &answer, func() error { return verifyStatus(&answer.Status, a.MustBeNew) }})
	if err != nil {
		return nil, err
	}
	answer.Status.Results = answer.Results
	return &answer.Status, nil
}

// Check is that of a Configurator.
func (c *Client) Check(ctx context.Context, a allocnet.Allocation) error {
	return c.call(ctx, exchange{method: "POST", path: pathOf(a.ID) + "/check", in: a})
}

// CheckOnly is that of a Configurator: Check without a repair.
func (c *Client) CheckOnly(ctx context.Context, a allocnet.Allocation) error {
	return c.call(ctx, exchange{method: "POST", path: pathOf(a.ID) + "/check?repair=false", in: a})
}

// Teardown is that of a Configurator.
func (c *Client) Teardown(ctx context.Context, a allocnet.Allocation) error {
	return c.call(ctx, exchange{method: "DELETE", path: pathOf(a.ID), in: a})
}

// TeardownGone is that of a Configurator.
func (c *Client) TeardownGone(ctx context.Context, id string) (gone bool, err error) {
	var answer wire.Gone
	err = c.call(ctx, exchange{"POST", pathOf(id) + "/teardown-gone", nil, &answer, func() error { return verifyNoError(answer.Error) }})
	return answer.Gone, err
}

// Audit is that of a Configurator.
func (c *Client) Audit(ctx context.Context, a allocnet.Allocation) ([]allocnet.Leftover, error) {
	return c.find(ctx, a, "audit")
}

// Force is that of a Configurator.
func (c *Client) Force(ctx context.Context, a allocnet.Allocation) ([]allocnet.Leftover, error) {
	return c.find(ctx, a, "force")
}

func (c *Client) find(ctx context.Context, a allocnet.Allocation, how string) ([]allocnet.Leftover, error) {
	var answer wire.Found
	err := c.call(ctx, exchange{"POST", pathOf(a.ID) + "/" + how, a, &answer, func() error {
		if answer.Leftovers == nil {
			return errors.New("no list of what was found")
		}
		return verifyNoError(answer.Error)
	}})
	if len(answer.Leftovers) == 0 {
		return nil, err
	}
	return answer.Leftovers, err
}

// GC is that of a Configurator.
func (c *Client) GC(ctx context.Context, live []string) (*allocnet.GCReport, error) {
	return c.GCScope(ctx, allocnet.Scope{Live: live})
}

// GCScope is that of a Configurator.
func (c *Client) GCScope(ctx context.Context, s allocnet.Scope) (*allocnet.GCReport, error) {
	return c.collect(ctx, s, false)
}

// PlanGC is that of a Configurator.
func (c *Client) PlanGC(ctx context.Context, s allocnet.Scope) (*allocnet.GCReport, error) {
	return c.collect(ctx, s, true)
}

func (c *Client) collect(ctx context.Context, s allocnet.Scope, dryRun bool) (*allocnet.GCReport, error) {
	if s.Live == nil {
		s.Live = []string{} // said, not forgotten
	}
	asked := wire.Collect{
		Live: s.Live, Scope: s.Name, Attachments: s.Attachments, Networks: s.Networks, Conflists: s.Conflists,
		PluginDirs: s.PluginDirs, DryRun: dryRun, DestroyNetns: s.DestroyNetns,
	}
	var answer wire.Collected
	err := c.call(ctx, exchange{"POST", "/v1/gc", asked, &answer, func() error {
		return errors.Join(verifyCollected(&answer.GCReport), verifyNoError(answer.Error))
	}})
	if verifyCollected(&answer.GCReport) != nil {
		return nil, err
	}
	return &answer.GCReport, err
}

// Repair is that of a Configurator.
func (c *Client) Repair(ctx context.Context) (*allocnet.RepairReport, error) {
	return c.RepairScope(ctx, allocnet.Scope{})
}

// RepairScope is that of a Configurator.
func (c *Client) RepairScope(ctx context.Context, s allocnet.Scope) (*allocnet.RepairReport, error) {
	var answer wire.Repaired
	err := c.call(ctx, exchange{"POST", "/v1/repair", selection(s), &answer, func() error {
		return errors.Join(verifyRepaired(&answer.RepairReport), verifyNoError(answer.Error))
	}})
	if verifyRepaired(&answer.RepairReport) != nil {
		return nil, err
	}
	return &answer.RepairReport, err
}

// Recover is that of a Configurator. The daemon does so by itself when it starts.
func (c *Client) Recover(ctx context.Context) (*allocnet.RecoverReport, error) {
	return c.RecoverScope(ctx, allocnet.Scope{})
}

// RecoverScope is that of a Configurator.
func (c *Client) RecoverScope(ctx context.Context, s allocnet.Scope) (*allocnet.RecoverReport, error) {
	var answer wire.Recovered
	err := c.call(ctx, exchange{"POST", "/v1/recover", selection(s), &answer, func() error {
		return errors.Join(verifyRecovered(&answer.RecoverReport), verifyNoError(answer.Error))
	}})
	if verifyRecovered(&answer.RecoverReport) != nil {
		return nil, err
	}
	return &answer.RecoverReport, err
}

// selection is the body of a request for a scope; nil for every scope.
func selection(s allocnet.Scope) any {
	if s.Name == "" {
		return nil
	}
	return wire.Selection{Scope: s.Name}
}

// List is that of a Configurator. Who is not root is not told the configurations of
// networks.
func (c *Client) List(ctx context.Context) ([]allocnet.Record, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var answer wire.Allocations
	err := c.call(ctx, exchange{"GET", "/v1/allocs", nil, &answer, func() error { return verifyRecords(&answer) }})
	if err != nil {
		return nil, err
	}
	for i := range answer.Allocations {
		addResults(&answer.Allocations[i])
	}
	return answer.Allocations, answer.Error.Err()
}

// Get is that of a Configurator, like List without the configurations of networks
// where the caller is not root.
func (c *Client) Get(ctx context.Context, id string) (*allocnet.Record, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var r allocnet.Record
	err := c.call(ctx, exchange{"GET", pathOf(id), nil, &r, func() error { return verifyRecord(&r, id) }})
	if err != nil {
		return nil, err
	}
	addResults(&r)
	return &r, nil
}

// addResults gives the status of a record the results of its networks.
func addResults(r *allocnet.Record) {
	if r.Status == nil {
		return
	}
	for _, n := range r.Networks {
		r.Status.Results = append(r.Status.Results, n.Result)
	}
}

// Networks is that of a Configurator. Where the daemon cannot be asked, the only
// error has the socket as its File.
func (c *Client) Networks(ctx context.Context) ([]allocnet.Network, []*allocnet.NetworkError) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var answer wire.Networks
	err := c.call(ctx, exchange{"GET", "/v1/networks", nil, &answer, func() error { return verifyNetworks(&answer) }})
	if err != nil {
		return nil, []*allocnet.NetworkError{{File: c.cfg.Socket, Err: err}}
	}
	var skipped []*allocnet.NetworkError
	for _, s := range answer.Skipped {
		skipped = append(skipped, s.NetworkError())
	}
	return answer.Networks, skipped
}

// Ready finds out whether a Setup can be expected to work, on any of the daemon's
// networks. All faults are joined.
func (c *Client) Ready(ctx context.Context) error {
	var answer wire.Readiness
	return c.call(ctx, exchange{"GET", "/readyz", nil, &answer, func() error { return verifyReady(&answer) }})
}

// ReadyFor is that of a Configurator. Which configurations and directories of plugins
// the daemon takes, and from whom, is as for Setup.
func (c *Client) ReadyFor(ctx context.Context, a allocnet.Allocation) error {
	return c.call(ctx, exchange{method: "POST", path: "/v1/ready", in: a})
}

// CreateSandbox makes a network namespace of that name in the daemon's directory, and
// returns its path. One that is there is fs.ErrExist, with its path.
func (c *Client) CreateSandbox(ctx context.Context, name string) (path string, err error) {
	var made wire.Sandbox
	verify := func() error { return errors.Join(verifySandbox(&made, name), verifyNoError(made.Error)) }
	err = c.call(ctx, exchange{"POST", "/v1/sandboxes", wire.NewSandbox{Name: name}, &made, verify})
	if verifySandbox(&made, name) != nil {
		return "", err
	}
	return made.Path, err
}

// DestroySandbox takes a network namespace away: any of that name in the daemon's
// directory, whoever made it, but not that of an allocation, which is
// allocnet.ErrInUse until its Teardown. A missing one is no error.
func (c *Client) DestroySandbox(ctx context.Context, name string) error {
	return c.call(ctx, exchange{method: "DELETE", path: "/v1/sandboxes/" + segment(name)})
}

// DestroySandboxAt is DestroySandbox for a path that CreateSandbox returned. One that
// is not in the daemon's directory is fs.ErrNotExist.
func (c *Client) DestroySandboxAt(ctx context.Context, path string) error {
	dir, name := filepath.Split(filepath.Clean(path))
	return c.call(ctx, exchange{method: "DELETE", path: "/v1/sandboxes/" + segment(name) + "?dir=" + url.QueryEscape(dir)})
}
