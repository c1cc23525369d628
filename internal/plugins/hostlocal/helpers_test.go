package hostlocal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
)

// A call is one operation as both implementations get it. DATA in the
// configuration stands for the directory of the leases.
type call struct {
	command, id, args, conf string
}

func (c call) environ() []string {
	env := []string{"CNI_COMMAND=" + c.command, "CNI_PATH=/none"}
	if c.command == "STATUS" || c.command == "GC" {
		return env
	}
	return append(env, "CNI_CONTAINERID="+c.id, "CNI_IFNAME=eth0", "CNI_NETNS=/none", "CNI_NETNS_OVERRIDE=1",
		"CNI_ARGS="+c.args)
}

// native runs a call inside the process.
func native(c call, dir string) (string, error) {
	e := &sdk.Exec{
		Plugins: map[string]sdk.Factory{"host-local": New},
		Host:    &sdk.Host{Log: hclog.NewNullLogger()},
		Lenient: true,
	}
	defer e.Close()
	conf := strings.ReplaceAll(c.conf, "DATA", dir)
	out, err := e.Answer(context.Background(), "host-local", []byte(conf), c.environ())
	return string(out), err
}

// binary runs a call with the reference plugin.
func binary(t testing.TB, c call, dir string) (string, error) {
	t.Helper()
	cmd := exec.Command(refplugins.Path(t, "host-local"))
	cmd.Env = c.environ()
	cmd.Stdin = strings.NewReader(strings.ReplaceAll(c.conf, "DATA", dir))
	var out bytes.Buffer
	cmd.Stdout = &out
	if cmd.Run() == nil {
		return out.String(), nil
	}
	var cniErr types.Error
	require.NoError(t, json.Unmarshal(out.Bytes(), &cniErr), out.String())
	return "", &cniErr
}

// codeOf is the code that an error stands for.
func codeOf(err error) uint {
	var cniErr *types.Error
	if errors.As(err, &cniErr) {
		return cniErr.Code
	}
	return types.ErrInternal
}

// leases is what is in the directory, but for the index.
func leases(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			if err == nil && entry.Name() == ".allocnet" {
				return filepath.SkipDir
			}
			return err
		}
		content, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		files[name] = string(content)
		return err
	})
	require.NoError(t, err)
	return files
}
