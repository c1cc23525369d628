package sdk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/state/bridges"
	"github.com/allocnet/allocnet/internal/state/switches"
	"github.com/allocnet/allocnet/sandbox"
)

// Main runs the plugin of that name as a plugin binary, with stdin, stdout and
// environment as the specification defines them, and returns the exit code.
// Plugins support all CNI versions, unless they have an entry in versions.
func Main(name string, plugins map[string]Factory, versions map[string]version.PluginInfo) int {
	if _, ok := plugins[name]; !ok {
		fmt.Fprintf(os.Stderr, "%s selects the CNI plugin by the name under which it is started (argv[0]): %s.\n"+
			"To create links with these names in the runtime's plugin directory, run: allocnet plugins install DIR\n",
			name, strings.Join(slices.Sorted(maps.Keys(plugins)), ", "))
		return 2
	}
	supported, ok := versions[name]
	if !ok {
		supported = version.All
	}
	m := &multicall{name: name, plugins: plugins}
	err := skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add: m.add, Del: m.serve, Check: m.serve, GC: m.serve, Status: m.serve,
	}, supported, About(name))
	if err == nil {
		return 0
	}
	if err := err.Print(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return 1
}

// multicall is one of the plugins of the program.
type multicall struct {
	name    string
	plugins map[string]Factory
}

// add rejects names that skel accepts, with the code that skel has for others. It also rejects the
// plugin's own network namespace: skel does so only after the plugin has done the work and printed
// the result, so nothing would undo it.
func (m *multicall) add(args *skel.CmdArgs) error {
	if err := names.ValidateNewInterface(args.IfName); err != nil {
		return err
	}
	if !overrides(args) && errors.Is(sandbox.Validate(args.Netns), sandbox.ErrHostNamespace) {
		return types.NewError(types.ErrInvalidNetNS, "CNI_NETNS is the network namespace of the plugin itself", args.Netns)
	}
	return m.serve(args)
}

// overrides reports whether the runtime permits the plugin's own network
// namespace.
func overrides(args *skel.CmdArgs) bool {
	return args.NetnsOverride == "1" || strings.EqualFold(args.NetnsOverride, "true")
}

// serve runs the command in the environment and prints its result.
func (m *multicall) serve(args *skel.CmdArgs) error {
	host, err := OpenDropInHost(Lines(m.name, os.Stderr))
	if err != nil {
		return err
	}
	host.Accept.CacheIn(filepath.Join(names.DefaultStateDir, "forwarding"))
	host.Switches, host.Bridges = switches.In(names.DefaultStateDir), bridges.In(names.DefaultStateDir)
	// The end of the process closes everything.
	exec := &Exec{Plugins: m.plugins, Host: host, Binary: &pluginexec.Exec{}, Lenient: true, OwnNetns: overrides(args)}
	defer exec.Close()
	out, err := exec.Answer(context.Background(), m.name, args.StdinData, os.Environ())
	if err != nil {
		return AsReference(err)
	}
	_, err = os.Stdout.Write(out)
	return err
}

// AsReference returns an error in the form in which a plugin binary reports it
// to a runtime. The reference plugins have no separate code for a bad
// configuration or bad CNI_ARGS, nor for a plugin that has reported none, and runtimes
// rely on that. In-process errors keep the exact code.
func AsReference(err error) *types.Error {
	var coded *types.Error
	if !errors.As(err, &coded) {
		return types.NewError(types.ErrInternal, err.Error(), "")
	}
	switch coded.Code {
	case types.ErrUnknown, types.ErrInvalidEnvironmentVariables, types.ErrDecodingFailure, types.ErrInvalidNetworkConfig:
		return types.NewError(types.ErrInternal, coded.Msg, coded.Details)
	}
	return coded
}
