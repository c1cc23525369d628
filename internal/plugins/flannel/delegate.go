package flannel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/subnetenv"
)

// delegate is the plugin to which flannel delegates, with its configuration.
type delegate struct {
	Name       string `json:"name"`
	Type       string `json:"type"`
	CNIVersion string `json:"cniVersion"`
	text       []byte
}

// oldestVersion is the version of a configuration without cniVersion, according to CNI.
const oldestVersion = "0.1.0"

// parseDelegate reads the configuration of a delegate, derived or saved.
func parseDelegate(text []byte) (*delegate, error) {
	d := &delegate{CNIVersion: oldestVersion, text: text}
	if err := json.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("the delegate's configuration cannot be read: %w", err)
	}
	if err := names.ValidatePluginType(d.Type); err != nil {
		return nil, fmt.Errorf("the delegate's configuration: %w", err)
	}
	if d.Type == subnetenv.Type {
		return nil, errors.New("the delegate's configuration: the type is that of flannel itself")
	}
	return d, nil
}

// run runs a command of the delegate. previous is the result of ADD, if there is one.
func (d *delegate) run(ctx context.Context, command string, c *sdk.CmdArgs, previous *types100.Result) (*types100.Result, error) {
	if hasResult, err := version.GreaterThanOrEqualTo(d.CNIVersion, "0.4.0"); err != nil || !hasResult && !c.InProcess(d.Type) {
		previous = nil // a binary of that version does not take it
	}
	return c.DelegateTo(ctx, command, d.Type, d.conf(), previous)
}

func (d *delegate) conf() *sdk.PluginConf {
	return &sdk.PluginConf{CNIVersion: d.CNIVersion, Text: d.text}
}

// with returns the delegate with another key in its configuration.
func (d *delegate) with(key string, value any) (*delegate, error) {
	text, err := sdk.WithKey(d.text, key, value)
	if err != nil {
		return nil, err
	}
	more := *d
	more.text = text
	return &more, nil
}
