package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/pluginexec"
)

// Main answers as the plugin binary of that name, on stdin, stdout and in the
// environment as the specification has it, and returns the exit code.
func Main(name string, plugins map[string]Factory) int {
	if _, ok := plugins[name]; !ok {
		fmt.Fprintf(os.Stderr, "%s answers as the CNI plugin whose name it is called by: %s.\n"+
			"Put links with these names into the runtime's plugin directory: allocnet plugins install DIR\n",
			name, strings.Join(slices.Sorted(maps.Keys(plugins)), ", "))
		return 2
	}
	if os.Getenv("CNI_COMMAND") == "" {
		fmt.Fprintf(os.Stderr, "CNI %s plugin of allocnet\nCNI protocol versions supported: %s\n",
			name, strings.Join(version.All.SupportedVersions(), ", "))
		return 0
	}
	m := &multicall{name: name, plugins: plugins}
	if err := m.answer(os.Getenv, os.Stdin); err != nil {
		if err := err.Print(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return 1
	}
	return 0
}

// multicall is one plugin of the program.
type multicall struct {
	name    string
	plugins map[string]Factory
}

// serve runs the command of the environment, and prints its result.
func (m *multicall) serve(conf []byte) error {
	host, err := OpenHost(lines{name: m.name, to: os.Stderr})
	if err != nil {
		return err
	}
	// What is open ends with the process.
	exec := &Exec{Plugins: m.plugins, Host: host, Binary: &pluginexec.Exec{}, Lenient: true}
	defer exec.Close()
	out, err := exec.ExecPlugin(context.Background(), native+m.name, conf, os.Environ())
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
