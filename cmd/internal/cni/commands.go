package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/configurator"
)

// errNotReady is the error of an ADD that cannot begin now.
var errNotReady = errors.New("the network is not ready")

// add sets up the attachment and returns its result. If the result cannot be encoded,
// it tears down an attachment that had no record before.
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

// undoTime is the maximum time for undoing an ADD whose result cannot be encoded.
const undoTime = 10 * time.Second

// check checks the existing allocation, even if the configuration has changed since.
func (c *call) check(ctx context.Context) error {
	r, err := c.backend.Get(ctx, c.id())
	if errors.Is(err, configurator.ErrNotFound) {
		return &Error{Code: CodeUnknownContainer, Msg: "unknown container: " + err.Error()}
	}
	if _, err := c.own(ctx); err != nil {
		return err
	}
	if err == nil {
		err = c.comparePrevious(r.Status)
	}
	if err != nil {
		return err
	}
	return c.backend.Check(ctx, c.bare())
}

// comparePrevious returns an error if the prevResult, which the runtime should pass, is not that of the
// attachment: if it lacks an address of the interface. Plugins that follow may have added to it, and the
// container may be attached to further networks.
func (c *call) comparePrevious(status *configurator.Status) error {
	if isNull(c.conf.PrevResult) || status == nil {
		return nil
	}
	text, err := c.conf.previous()
	if err != nil {
		return err
	}
	var previous types100.Result
	if err := json.Unmarshal(text, &previous); err != nil {
		return badConfig("prevResult: %v", err)
	}
	for _, i := range status.Interfaces {
		if i.Sandbox == "" || i.Name != c.env.IfName {
			continue
		}
		for _, a := range i.Addresses {
			if !slices.ContainsFunc(previous.IPs, func(ip *types100.IPConfig) bool { return ip.Address.String() == a.Address }) {
				return badConfig("prevResult: it is not the result of this attachment: address %s of interface %s is missing", a.Address, i.Name)
			}
		}
	}
	return nil
}

// del tears down the allocation of the record. Without a record, it removes what the
// configuration, if it is valid, may have left.
func (c *call) del(ctx context.Context, whole bool) error {
	if _, err := c.own(ctx); err != nil && !c.renamed(ctx) {
		return err
	}
	a := c.bare()
	if whole {
		a, _ = c.allocation() // the valid part
	}
	return c.backend.Teardown(ctx, a)
}

// gc removes the attachments that are not in the runtime's list of valid ones. It
// removes nothing if the runtime sends no list.
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
		Attachments: append([]types.GCAttachment{}, valid...), // null in the configuration is an empty list
	}
	for _, a := range valid {
		scope.Live = append(scope.Live, idOf(a.ContainerID, a.IfName))
	}
	_, err = c.backend.GCScope(ctx, scope)
	return err
}

// status returns an error with the code 50, or a plugin's own code, if an ADD cannot succeed
// now.
func (c *call) status(ctx context.Context) error {
	names, lists, err := c.networks()
	if err != nil {
		return err
	}
	// STATUS does not tell whether the runtime runs other plugins before this one, so they may have a result.
	a := configurator.Allocation{Networks: names, Conflists: lists, PluginDirs: c.pluginDirs(), PrevResult: json.RawMessage("{}")}
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
