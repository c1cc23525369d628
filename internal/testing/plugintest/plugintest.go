// Package plugintest calls one plugin in two implementations, the native one and the
// reference plugin's binary, so that tests can compare their answers.
package plugintest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
)

// Native calls a native plugin in the process, with a configuration and the
// environment of the CNI call, and returns what the plugin would print. It closes e.
func Native(t testing.TB, e *sdk.Exec, plugin, conf string, environ []string) (string, error) {
	t.Helper()
	defer func() { require.NoError(t, e.Close()) }()
	out, err := e.Answer(context.Background(), plugin, []byte(conf), environ)
	return string(out), err
}

// Reference runs the binary of a reference plugin and returns its stdout. An error is
// the *types.Error that the plugin printed.
func Reference(t testing.TB, plugin, conf string, environ []string) (string, error) {
	t.Helper()
	cmd := exec.Command(refplugins.Path(t, plugin))
	cmd.Env, cmd.Stdin = environ, strings.NewReader(conf)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if cmd.Run() == nil {
		return stdout.String(), nil
	}
	var e types.Error
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &e), "%s%s", &stdout, &stderr)
	return "", &e
}

// Code is the code of the CNI error, or 0 for no error.
func Code(err error) uint {
	var e *types.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.Code
	}
	return types.ErrInternal
}

// ReportedCode is Code, but that of an invalid configuration is the one that the reference
// plugins report: see sdk.AsReference.
func ReportedCode(err error) uint {
	code := Code(err)
	if code == types.ErrInvalidNetworkConfig {
		return types.ErrInternal
	}
	return code
}

// WithPrevResult adds the result of an ADD to a configuration.
func WithPrevResult(t testing.TB, conf, result string) string {
	t.Helper()
	var keys map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(conf), &keys))
	keys["prevResult"] = json.RawMessage(result)
	data, err := json.Marshal(keys)
	require.NoError(t, err)
	return string(data)
}

// MAC parses a MAC.
func MAC(t testing.TB, text string) net.HardwareAddr {
	t.Helper()
	mac, err := net.ParseMAC(text)
	require.NoError(t, err)
	return mac
}
