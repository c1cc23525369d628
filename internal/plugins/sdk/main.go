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
	"github.com/allocnet/allocnet/sandbox"
)

// Main answers as the plugin binary of that name, on stdin, stdout and in the
// environment as the specification has it, and returns the exit code. The plugins
// serve all versions of CNI but those that have an entry of their own.
func Main(name string, plugins map[string]Factory, versions map[string]version.PluginInfo) int {
	if _, ok := plugins[name]; !ok {
		fmt.Fprintf(os.Stderr, "%s answers as the CNI plugin whose name it is called by: %s.\n"+
			"Put links with these names into the runtime's plugin directory: allocnet plugins install DIR\n",
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

// multicall is one plugin of the program.
type multicall struct {
	name    string
	plugins map[string]Factory
}

// add refuses the host's own namespace. So does skel, but after the work is done
// and its result printed: then nobody undoes it.
func (m *multicall) add(args *skel.CmdArgs) error {
	if !overrides(args) && errors.Is(sandbox.Validate(args.Netns), sandbox.ErrHostNamespace) {
		return types.NewError(types.ErrInvalidNetNS, "CNI_NETNS is the network namespace of the plugin itself", args.Netns)
	}
	return m.serve(args)
}

// overrides reports whether the runtime means the plugin's own namespace if it
// names that.
func overrides(args *skel.CmdArgs) bool {
	return args.NetnsOverride == "1" || strings.EqualFold(args.NetnsOverride, "true")
}

// serve runs the command of the environment, and prints its result.
func (m *multicall) serve(args *skel.CmdArgs) error {
	log := lines{name: m.name, to: os.Stderr}
	host, err := OpenHost(log)
	if err != nil {
		return err
	}
	host.Accept.CacheIn(filepath.Join(names.DefaultStateDir, "forwarding"))
	// What is open ends with the process.
	exec := &Exec{Plugins: m.plugins, Host: host, Binary: &pluginexec.Exec{}, Lenient: true, OwnNetns: overrides(args)}
	defer exec.Close()
	out, err := exec.Answer(context.Background(), m.name, args.StdinData, os.Environ())
	if err != nil {
		return AsReference(err)
	}
	_, err = os.Stdout.Write(out)
	return err
}

// AsReference is an error as a runtime gets it of a plugin binary. The reference
// plugins tell a bad configuration or bad CNI_ARGS by no code of their own, and
// runtimes know them so; inside the process it is better to be exact.
func AsReference(err error) *types.Error {
	var coded *types.Error
	if !errors.As(err, &coded) {
		return types.NewError(types.ErrInternal, err.Error(), "")
	}
	switch coded.Code {
	case types.ErrInvalidEnvironmentVariables, types.ErrDecodingFailure, types.ErrInvalidNetworkConfig:
		return types.NewError(types.ErrInternal, coded.Msg, coded.Details)
	}
	return coded
}
