package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/configurator"
)

// errNotReady: the daemon waits for something before it begins an ADD.
var errNotReady = errors.New("the network is not ready")

func (c *call) add(ctx context.Context) (json.RawMessage, error) {
	a, err := c.allocation()
	if err != nil {
		return nil, err
	}
	asked := configurator.Allocation{Networks: a.Networks, Conflists: a.Conflists}
	if err := c.options.NotReady(asked); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotReady, err)
	}
	known, err := c.own(ctx)
	if err != nil {
		return nil, err
	}
	status, err := c.backend.Setup(ctx, a)
	if err != nil {
		return nil, err
	}
	result, err := resultOf(status, c.conf.CNIVersion)
	if err != nil && !known {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		err = errors.Join(err, c.backend.Teardown(ctx, c.bare()))
	}
	return result, err
}

// undoTime is what the end of an ADD may take whose result cannot be said.
const undoTime = 10 * time.Second

// check is about what was set up; that the configuration is another by now does not
// matter.
func (c *call) check(ctx context.Context) error {
	if _, err := c.backend.Get(ctx, c.id()); errors.Is(err, configurator.ErrNotFound) {
		return &Error{Code: CodeUnknownContainer, Msg: "unknown container: " + err.Error()}
	}
	if _, err := c.own(ctx); err != nil {
		return err
	}
	return c.backend.Check(ctx, c.bare())
}

// del takes away what the record says. Where there is none, it looks for what the
// configuration, if it is whole, may have left.
func (c *call) del(ctx context.Context, whole bool) error {
	if _, err := c.own(ctx); err != nil && !c.renamed(ctx) {
		return err
	}
	a := c.bare()
	if whole {
		a, _ = c.allocation() // as much as can be understood
	}
	return c.backend.Teardown(ctx, a)
}

// gc collects what a runtime does not know. Of one that does not say what it knows,
// that is nothing.
func (c *call) gc(ctx context.Context) error {
	valid, said, err := c.conf.attachments()
	if err != nil || !said {
		return err
	}
	names, lists, err := c.networks()
	if err != nil {
		return err
	}
	scope := configurator.Scope{
		Name: c.head.scope(), Networks: names, Conflists: lists, PluginDirs: c.pluginDirs(),
		Attachments: append([]types.GCAttachment{}, valid...), // null says that there are none
	}
	for _, a := range valid {
		scope.Live = append(scope.Live, idOf(a.ContainerID, a.IfName))
	}
	_, err = c.backend.GCScope(ctx, scope)
	return err
}

// status says that an ADD cannot work now by the code 50, unless a plugin says it by
// its own.
func (c *call) status(ctx context.Context) error {
	names, lists, err := c.networks()
	if err != nil {
		return err
	}
	a := configurator.Allocation{Networks: names, Conflists: lists, PluginDirs: c.pluginDirs()}
	err = c.options.NotReady(a)
	if err == nil {
		err = c.options.Ready(ctx, a)
	}
	var coded *types.Error
	if err == nil || errors.As(err, &coded) {
		return err
	}
	return &Error{Code: CodeNotAvailable, Msg: errNotReady.Error(), Details: err.Error()}
}
