package cniexec

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
)

// delChain runs DEL of every plugin of attachment i, the last one first. Unlike libcni,
// it continues after the error of a plugin, so that the others can release their
// resources.
func delChain(ctx context.Context, r *engine.Request, i int) error {
	a := r.Attachments[i]
	c := libcni.NewCNIConfigWithCacheDir(r.Path(), engine.NoCache, &pluginexec.Exec{})
	var errs []error
	for j, plugin := range slices.Backward(a.Network.List.Plugins) {
		one := *a.Network.List
		withResult, err := withPrevResult(&a, plugin)
		if err == nil {
			one.Plugins = []*libcni.PluginConfig{withResult}
			err = c.DelNetworkList(ctx, &one, r.RuntimeConf(i))
		}
		if err != nil {
			errs = append(errs, &engine.DelError{Place: engine.Place{Attachment: i, Plugin: j}, Network: a.Network.Name, Config: plugin.Bytes, Err: err})
		}
	}
	return errors.Join(errs...)
}

// withPrevResult adds the result of ADD to the configuration of a plugin, if the CNI
// version of the network has prevResult.
func withPrevResult(a *engine.Attachment, plugin *libcni.PluginConfig) (*libcni.PluginConfig, error) {
	since, err := version.GreaterThanOrEqualTo(a.Network.List.CNIVersion, "0.4.0")
	if err != nil || !since || a.Result == nil {
		return plugin, err
	}
	prev, err := a.Result.GetAsVersion(a.Network.List.CNIVersion)
	if err != nil {
		return nil, fmt.Errorf("plugin %q: convert result: %w", plugin.Network.Type, err)
	}
	return libcni.InjectConf(plugin, map[string]any{"prevResult": prev})
}
