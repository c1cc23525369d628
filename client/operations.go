package client

import (
	"context"
	"errors"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/wire"
)

func pathOf(id string) string { return "/v1/allocs/" + segment(id) }

// segment escapes a name as one segment of a path. The server validates the name.
func segment(name string) string {
	if strings.Trim(name, ".") == "" {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}

// Setup attaches an allocation to its networks and returns their Status. See
// configurator.Configurator.Setup.
func (c *Client) Setup(ctx context.Context, a allocnet.Allocation) (*allocnet.Status, error) {
	var answer wire.Applied
	err := c.call(ctx, exchange{"PUT", pathOf(a.ID), a, &answer, func() error { return verifyStatus(&answer.Status, a.MustBeNew) }})
	if err != nil {
		return nil, err
	}
	answer.Status.Results = answer.Results
	return &answer.Status, nil
}

// Update changes an allocation while it is set up. See configurator.Configurator.Update.
func (c *Client) Update(ctx context.Context, id string, change allocnet.Change) (*allocnet.Status, error) {
	return c.changed(ctx, "PATCH", pathOf(id), change)
}

// Attach adds a network to an allocation while it is set up. See configurator.Configurator.Attach.
func (c *Client) Attach(ctx context.Context, id, network string, o allocnet.AttachOptions) (*allocnet.Status, error) {
	return c.changed(ctx, "POST", pathOf(id)+"/attachments", wire.Attach{Network: network, Interface: o.Interface, Revision: o.Revision})
}

// Detach removes a network of an allocation while it is set up. See
// configurator.Configurator.Detach.
func (c *Client) Detach(ctx context.Context, id, interfaceName, revision string) (*allocnet.Status, error) {
	path := pathOf(id) + "/attachments/" + segment(interfaceName)
	if revision != "" {
		path += "?revision=" + url.QueryEscape(revision)
	}
	return c.changed(ctx, "DELETE", path, nil)
}

// changed makes a request whose answer is the Status of a changed allocation.
func (c *Client) changed(ctx context.Context, method, path string, in any) (*allocnet.Status, error) {
	var answer wire.Applied
	err := c.call(ctx, exchange{method, path, in, &answer, func() error { return verifyStatus(&answer.Status, false) }})
	if err != nil {
		return nil, err
	}
	answer.Status.Results = answer.Results
	return &answer.Status, nil
}

// Check verifies that the network of an allocation is still as Setup left it. The daemon
// repairs it if necessary. See configurator.Configurator.Check.
func (c *Client) Check(ctx context.Context, a allocnet.Allocation) error {
	return c.call(ctx, exchange{method: "POST", path: pathOf(a.ID) + "/check", in: a})
}

// CheckOnly is Check without a repair.
func (c *Client) CheckOnly(ctx context.Context, a allocnet.Allocation) error {
	return c.call(ctx, exchange{method: "POST", path: pathOf(a.ID) + "/check?repair=false", in: a})
}

// Teardown removes everything that an allocation has on the host. See
// configurator.Configurator.Teardown.
func (c *Client) Teardown(ctx context.Context, a allocnet.Allocation) error {
	return c.call(ctx, exchange{method: "DELETE", path: pathOf(a.ID), in: a})
}

// TeardownGone tears an allocation down if its network namespace no longer exists. See
// configurator.Configurator.TeardownGone.
func (c *Client) TeardownGone(ctx context.Context, id string) (gone bool, err error) {
	var answer wire.Gone
	err = c.call(ctx, exchange{"POST", pathOf(id) + "/teardown-gone", nil, &answer, func() error { return verifyNoError(answer.Error) }})
	return answer.Gone, err
}

// Audit lists the objects of an allocation on the host. See
// configurator.Configurator.Audit.
func (c *Client) Audit(ctx context.Context, a allocnet.Allocation) ([]allocnet.Leftover, error) {
	return c.find(ctx, a, "audit")
}

// Force removes an allocation without running plugins. See
// configurator.Configurator.Force.
func (c *Client) Force(ctx context.Context, a allocnet.Allocation) ([]allocnet.Leftover, error) {
	return c.find(ctx, a, "force")
}

// find sends the request of Audit or Force; how is the last element of its path.
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

// GC tears down every allocation that is not live. See configurator.Configurator.GC.
func (c *Client) GC(ctx context.Context, live []string) (*allocnet.GCReport, error) {
	return c.GCScope(ctx, allocnet.Scope{Live: live})
}

// GCScope is GC of the allocations of one scope. See configurator.Configurator.GCScope.
func (c *Client) GCScope(ctx context.Context, s allocnet.Scope) (*allocnet.GCReport, error) {
	return c.collect(ctx, s, false)
}

// PlanGC reports what GCScope would do now, and changes nothing. See
// configurator.Configurator.PlanGC.
func (c *Client) PlanGC(ctx context.Context, s allocnet.Scope) (*allocnet.GCReport, error) {
	return c.collect(ctx, s, true)
}

// collect sends the request of GCScope or, with dryRun, of PlanGC. If GC has failed, it
// also returns the report in the response.
func (c *Client) collect(ctx context.Context, s allocnet.Scope, dryRun bool) (*allocnet.GCReport, error) {
	if s.Live == nil {
		s.Live = []string{} // an explicit empty list
	}
	request := wire.Collect{
		Live: s.Live, Scope: s.Name, Attachments: s.Attachments, Networks: s.Networks, Conflists: s.Conflists,
		PluginDirs: s.PluginDirs, DryRun: dryRun, DestroyNetns: s.DestroyNetns,
	}
	var answer wire.Collected
	err := c.call(ctx, exchange{"POST", "/v1/gc", request, &answer, func() error {
		return errors.Join(verifyCollected(&answer.GCReport), verifyNoError(answer.Error))
	}})
	if verifyCollected(&answer.GCReport) != nil {
		return nil, err
	}
	return &answer.GCReport, err
}

// Repair checks every allocation and restores objects on the host that another program has
// removed. See configurator.Configurator.Repair.
func (c *Client) Repair(ctx context.Context) (*allocnet.RepairReport, error) {
	return c.RepairScope(ctx, allocnet.Scope{})
}

// RepairScope is Repair of the allocations of one scope.
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

// Recover tears down allocations whose Setup or Teardown was interrupted. The daemon runs it
// when it starts. See configurator.Configurator.Recover.
func (c *Client) Recover(ctx context.Context) (*allocnet.RecoverReport, error) {
	return c.RecoverScope(ctx, allocnet.Scope{})
}

// RecoverScope is Recover of the allocations of one scope.
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

// selection returns the body of a request for a scope; nil selects every scope.
func selection(s allocnet.Scope) any {
	if s.Name == "" {
		return nil
	}
	return wire.Selection{Scope: s.Name}
}

// List returns the records of all allocations, sorted by ID. If the caller is not root, the
// records lack the configurations of the networks. See configurator.Configurator.List.
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

// Get returns the record of one allocation. If the caller is not root, the record lacks the
// configurations of the networks. See configurator.Configurator.Get.
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

// addResults copies the results of the networks of a record into its status.
func addResults(r *allocnet.Record) {
	if r.Status == nil {
		return
	}
	for _, n := range r.Networks {
		r.Status.Results = append(r.Status.Results, n.Result)
	}
}

// Networks returns the active networks of the daemon, and an error for each skipped file. If
// the request fails, it returns a single error whose File is the path of the socket.
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

// History returns operations that have ended, oldest first, as far as the daemon's journal
// reaches back. See configurator.Configurator.History.
func (c *Client) History(ctx context.Context, q allocnet.HistoryQuery) ([]allocnet.HistoryEntry, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	query := url.Values{}
	if q.ID != "" {
		query.Set("id", q.ID)
	}
	if q.Limit > 0 {
		query.Set("limit", strconv.Itoa(q.Limit))
	}
	var answer wire.History
	path := (&url.URL{Path: "/v1/history", RawQuery: query.Encode()}).String()
	err := c.call(ctx, exchange{"GET", path, nil, &answer, func() error { return verifyHistory(&answer) }})
	return answer.Operations, err
}

// Ready verifies the requirements of a Setup for all networks of the daemon. It joins all
// errors.
func (c *Client) Ready(ctx context.Context) error {
	var answer wire.Readiness
	return c.call(ctx, exchange{"GET", "/readyz", nil, &answer, func() error { return verifyReady(&answer) }})
}

// ReadyFor is Ready for the networks of one allocation. The daemon accepts Conflists and
// PluginDirs from the same callers as in Setup. See configurator.Configurator.ReadyFor.
func (c *Client) ReadyFor(ctx context.Context, a allocnet.Allocation) error {
	return c.call(ctx, exchange{method: "POST", path: "/v1/ready", in: a})
}

// CreateSandbox creates a network namespace with this name in the daemon's directory and
// returns its path. If it exists, CreateSandbox returns its path and fs.ErrExist.
func (c *Client) CreateSandbox(ctx context.Context, name string) (path string, err error) {
	var made wire.Sandbox
	verify := func() error { return errors.Join(verifySandbox(&made, name), verifyNoError(made.Error)) }
	err = c.call(ctx, exchange{"POST", "/v1/sandboxes", wire.NewSandbox{Name: name}, &made, verify})
	if verifySandbox(&made, name) != nil {
		return "", err
	}
	return made.Path, err
}

// DestroySandbox destroys the network namespace with this name in the daemon's directory,
// also if another program created it. If it belongs to an allocation, DestroySandbox returns
// allocnet.ErrInUse; tear the allocation down first. If the namespace does not exist,
// DestroySandbox succeeds.
func (c *Client) DestroySandbox(ctx context.Context, name string) error {
	return c.call(ctx, exchange{method: "DELETE", path: "/v1/sandboxes/" + segment(name)})
}

// DestroySandboxAt is DestroySandbox for a path that CreateSandbox returned. It returns
// fs.ErrNotExist if the path is not in the daemon's directory.
func (c *Client) DestroySandboxAt(ctx context.Context, path string) error {
	dir, name := filepath.Split(filepath.Clean(path))
	return c.call(ctx, exchange{method: "DELETE", path: "/v1/sandboxes/" + segment(name) + "?dir=" + url.QueryEscape(dir)})
}
