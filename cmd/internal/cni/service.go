package cni

import (
	"context"
	"encoding/json"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// Options configure a Service. Backend and Ready are required.
type Options struct {
	// Backend is called for every request, so that a reload takes effect.
	Backend func() allocnet.Service
	// Ready returns an error if an ADD for the networks of an allocation cannot be
	// expected to succeed. Only Networks and Conflists of the allocation are set.
	Ready func(context.Context, configurator.Allocation) error
	// NotReady returns why an ADD for the networks of an allocation must not begin now,
	// or nil. The allocation is as for Ready. NotReady is called before each ADD, so it
	// must be fast. By default it returns nil.
	NotReady func(configurator.Allocation) error
}

// Service serves requests of the plugin. It is safe for concurrent use.
type Service struct {
	options Options
}

// New returns a Service.
func New(o Options) *Service {
	if o.NotReady == nil {
		o.NotReady = func(configurator.Allocation) error { return nil }
	}
	return &Service{options: o}
}

// Serve serves a request. If the context ends during an ADD, the ADD is undone.
func (s *Service) Serve(ctx context.Context, r Request) Response {
	result, err := s.serve(ctx, r)
	if err != nil {
		e := fault(err)
		e.CNIVersion = ReportVersion(versionOf(r.Config))
		if r.Env.Command == Del {
			e.Msg, e.Details = sdk.RewordDel(e.Msg), sdk.RewordDel(e.Details)
		}
		return Response{Error: e}
	}
	return Response{Result: result}
}

// serve runs the command of a request. The result is nil for all commands except ADD
// and VERSION.
func (s *Service) serve(ctx context.Context, r Request) (json.RawMessage, error) {
	if r.Env.Command == Version {
		return VersionResult(versionOf(r.Config)), nil
	}
	c := &call{Service: s, backend: s.options.Backend(), env: r.Env, conflists: r.Conflists, root: r.Root}
	if err := checkEnv(r.Env); err != nil {
		return nil, err
	}
	var err error
	if c.head, err = readHead(r.Config); err != nil {
		return nil, err
	}
	if err := c.head.speaks(r.Env.Command); err != nil {
		return nil, err
	}
	c.conf, err = readConfig(r.Config)
	if r.Env.Command == Del { // DEL does not need the configuration
		return nil, c.del(ctx, err == nil)
	}
	if err != nil {
		return nil, err
	}
	switch r.Env.Command {
	case Add:
		return c.add(ctx)
	case Check:
		return nil, c.check(ctx)
	case GC:
		return nil, c.gc(ctx)
	}
	return nil, c.status(ctx)
}

// call is one request.
type call struct {
	*Service
	backend allocnet.Service
	env     Env
	// conflists reports whether the caller may supply plugin configurations.
	conflists bool
	root      bool
	head      head
	conf      *config
}
