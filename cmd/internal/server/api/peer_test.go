package api_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/server/api"
	"github.com/allocnet/allocnet/cmd/internal/server/apitest"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/skip"
)

// peerSocket is the variable that makes the test binary a client.
const peerSocket = "ALLOCNET_TEST_PEER_SOCKET"

// peerConflists is the variable that makes the client send network configurations.
const peerConflists = "ALLOCNET_TEST_PEER_CONFLISTS"

// actAsPeer prints the answers that a client gets.
func actAsPeer(socket string, conflists bool) int {
	c := client.New(client.Config{Socket: socket})
	if conflists {
		sendConflists(c)
		return 0
	}
	list, err := c.List(context.Background())
	switch {
	case errors.Is(err, client.ErrForbidden):
		fmt.Print("forbidden")
	case err != nil:
		fmt.Print(err)
	default:
		one, err := c.Get(context.Background(), list[0].ID)
		fmt.Print(err, " ", string(list[0].Networks[0].Config), " ", string(one.Networks[0].Config))
	}
	return 0
}

// attached is a service with a record of a network.
type attached struct{ apitest.Memory }

func (*attached) Get(_ context.Context, id string) (*configurator.Record, error) {
	return &configurator.Record{ID: id, Phase: configurator.PhaseReady, Networks: []configurator.NetworkRecord{{Network: "net", Config: []byte(`{"secret":1}`)}}}, nil
}

func (a *attached) List(ctx context.Context) ([]configurator.Record, error) {
	r, err := a.Get(ctx, "a")
	return []configurator.Record{*r}, err
}

// TestPeers connects as other users from their own processes. Only root gets
// configurations.
func TestPeers(t *testing.T) {
	const user, group, other = 65534, 54321, 54322
	requireRoot(t)
	many := make([]uint32, 200) // more than the first attempt reads
	for i := range many {
		many[i] = uint32(60000 + i)
	}
	socket, _ := apitest.Serve(t, api.Options{Groups: []uint32{7, group}, Service: func() allocnet.Service { return &attached{} }})
	openTo(t, socket)
	root, member, forbidden := `<nil> {"secret":1} {"secret":1}`, "<nil>  ", "forbidden"
	for name, c := range map[string]struct {
		credential syscall.Credential
		mode       os.FileMode // of the socket
		want       string
	}{
		"root":                {syscall.Credential{}, 0o600, root},
		"group":               {syscall.Credential{Uid: user, Gid: group}, 0o777, member},
		"supplementary group": {syscall.Credential{Uid: user, Gid: user, Groups: []uint32{other, group}}, 0o777, member},
		"one of many groups":  {syscall.Credential{Uid: user, Gid: user, Groups: append(many, group)}, 0o777, member},
		"another group":       {syscall.Credential{Uid: user, Gid: other, Groups: []uint32{other}}, 0o777, forbidden},
		"root's group":        {syscall.Credential{Uid: user, Gid: 0}, 0o777, forbidden},
		"many others":         {syscall.Credential{Uid: user, Gid: user, Groups: many}, 0o777, forbidden},
		"no way to connect":   {syscall.Credential{Uid: user, Gid: group}, 0o600, forbidden},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.Chmod(socket, c.mode))
			require.Equal(t, c.want, runPeer(t, socket, c.credential))
		})
	}
}

// requireRoot skips a test that connects as other users.
func requireRoot(t *testing.T) {
	t.Helper()
	skip.Unless(t, os.Geteuid() == 0, "only root can connect as other users")
}

// openTo lets other users search the directories of a socket, up to that for the files of all programs.
func openTo(t *testing.T, socket string) {
	t.Helper()
	top := filepath.Clean(os.TempDir())
	require.True(t, strings.HasPrefix(socket, top+"/"), socket)
	for dir := filepath.Dir(socket); dir != top; dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755))
	}
}

// runPeer returns the output of a client that runs as a user.
func runPeer(t *testing.T, socket string, who syscall.Credential, more ...string) string {
	t.Helper()
	peer := exec.Command("/proc/self/exe")
	peer.Env = append(os.Environ(), peerSocket+"="+socket, "GORACE=atexit_sleep_ms=0")
	peer.Env = append(peer.Env, more...)
	peer.Dir = "/"
	peer.SysProcAttr = &syscall.SysProcAttr{Credential: &who}
	out, err := peer.Output()
	require.NoError(t, err)
	return string(out)
}
