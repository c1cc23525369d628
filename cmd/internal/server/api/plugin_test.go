package api_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/cmd/internal/dropin"
	"github.com/allocnet/allocnet/cmd/internal/server/api"
	"github.com/allocnet/allocnet/cmd/internal/server/apitest"
	"github.com/allocnet/allocnet/internal/wire"
)

// calling is the header of a call of a plugin.
func calling(command, container string) []string {
	return []string{
		"CNI-Command", command, "CNI-ContainerID", container, "CNI-Netns", "/n", "CNI-Ifname", "eth0", "CNI-Args", `A="b";C`,
		"CNI-Path", "/opt/cni/bin", "Allocnet-Host", "0:4:1 0:4:2 8:1:2", "Allocnet-Netns", "0:4:3",
	}
}

// plugins serves an API with a function for plugins.
func plugins(t *testing.T, l api.Limits, serve func(context.Context, dropin.Call) (*dropin.Answer, error)) (socket string) {
	socket, _ = apitest.Serve(t, api.Options{Plugin: serve, Limits: l})
	return socket
}

// await waits for the end of a channel or of a call; the latter ends after a failed test.
func await(ctx context.Context, release <-chan struct{}) {
	select {
	case <-release:
	case <-ctx.Done():
	}
}

func TestPluginReachesTheService(t *testing.T) {
	requireRoot(t)
	arrived := make(chan dropin.Call, 1)
	var says *dropin.Answer
	socket := plugins(t, api.Limits{}, func(_ context.Context, c dropin.Call) (*dropin.Answer, error) {
		c.Config = []byte(string(c.Config))
		arrived <- c
		return says, nil
	})
	const stdin = ` {"cniVersion":"1.0.0", "password":"x","password":"y"}` + "\n"
	for _, test := range []struct {
		says   dropin.Answer
		status int
		exit   string
	}{
		{dropin.Answer{Stdout: []byte(`{"ips": []}`), Stderr: []string{"[WARN] bridge: a=\"b\"", "c"}}, 200, "0"},
		{dropin.Answer{Stdout: []byte(`{"code":7}`), Exit: 1}, 200, "1"},
		{dropin.Answer{}, 204, ""},
		{dropin.Answer{Stderr: []string{"c"}}, 204, ""},
	} {
		says = &test.says
		got := ask(t, socket, "POST", "/cni/plugins/host-local", stdin, calling("ADD", "c")...)
		require.Equal(t, []any{test.status, string(test.says.Stdout), test.exit, test.says.Stderr},
			[]any{got.status, got.body, got.header.Get("Allocnet-Exit-Status"), got.header.Values("Allocnet-Stderr")})
		require.Equal(t, dropin.Call{
			Plugin: "host-local", Host: "0:4:1 0:4:2 8:1:2", NetnsID: "0:4:3", Config: []byte(stdin),
			Env: cni.Env{Command: "ADD", ContainerID: "c", Netns: "/n", IfName: "eth0", Args: `A="b";C`, Path: "/opt/cni/bin"},
		}, <-arrived)
	}
}

func TestPluginRefusals(t *testing.T) {
	requireRoot(t)
	var fails error
	socket := plugins(t, api.Limits{BodyTimeout: 200 * time.Millisecond}, func(context.Context, dropin.Call) (*dropin.Answer, error) {
		if fails == nil {
			panic("as wanted")
		}
		return nil, fails
	})
	for _, test := range []struct {
		fails  error
		body   string
		status int
		kind   string
	}{
		{fmt.Errorf("%w: a reason", wire.ErrNotServed), "{}", 421, "not-served"},
		{types.NewError(7, "m", ""), "{}", 502, "plugin"},
		{nil, "{}", 500, "internal"},
		{wire.ErrNotServed, strings.Repeat(" ", dropin.MaxConfig+1), 413, "too-large"},
	} {
		fails = test.fails
		got := ask(t, socket, "POST", "/cni/plugins/bridge", test.body, calling("ADD", "c")...)
		require.Equal(t, test.status, got.status, got.body)
		require.Contains(t, got.body, `"kind":"`+test.kind+`"`)
	}
	require.Equal(t, 405, ask(t, socket, "GET", "/cni/plugins/bridge", "").status)
	require.Equal(t, 404, ask(t, socket, "POST", "/cni/plugins/", "{}").status)
	require.Contains(t, readAll(t, dial(t, socket, "POST /cni/plugins/bridge HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{")), "408 Request Timeout")
}

// peerPlugin is the variable that makes the client call a plugin.
const peerPlugin = "ALLOCNET_TEST_PEER_PLUGIN"

// callAsPeer prints the status of a call.
func callAsPeer(socket string) int {
	got, err := try(context.Background(), socket, "POST", "/cni/plugins/bridge", "{}", calling("ADD", "c")...)
	fmt.Print(got.status, " ", err)
	return 0
}

// TestPluginsAreForRoot: other users must not make root run plugins.
func TestPluginsAreForRoot(t *testing.T) {
	requireRoot(t)
	const user, group = 65534, 54321
	calls := 0
	socket, _ := apitest.Serve(t, api.Options{
		Groups: []uint32{group}, AllowConflists: true,
		Plugin: func(context.Context, dropin.Call) (*dropin.Answer, error) { calls++; return &dropin.Answer{}, nil },
	})
	openTo(t, socket)
	require.NoError(t, os.Chmod(socket, 0o777))
	require.Equal(t, "204 <nil>", runPeer(t, socket, syscall.Credential{}, peerPlugin+"=1"))
	require.Equal(t, "403 <nil>", runPeer(t, socket, syscall.Credential{Uid: user, Gid: group}, peerPlugin+"=1"))
	require.Equal(t, 1, calls)
}

// TestPluginKeepalive checks that the client hears of a call that waits and of one that
// runs.
func TestPluginKeepalive(t *testing.T) {
	requireRoot(t)
	release := make(chan struct{})
	socket := plugins(t, api.Limits{}, func(ctx context.Context, _ dropin.Call) (*dropin.Answer, error) {
		await(ctx, release)
		return &dropin.Answer{Stdout: []byte("{}")}, nil
	})
	var answers []*bufio.Reader
	for range 2 { // the second one waits for the first one
		text := strings.Replace(request("POST", "/cni/plugins/bridge", "{}"), "\r\n", "\r\nCNI-Command: ADD\r\nCNI-ContainerID: c\r\nCNI-Path: /b\r\nAllocnet-Host: h\r\n", 1)
		answers = append(answers, bufio.NewReader(dial(t, socket, text)))
	}
	for _, r := range answers {
		for range 2 {
			line, err := r.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "HTTP/1.1 102 Processing\r\n", line)
			line, err = r.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "\r\n", line)
		}
	}
	close(release)
	for _, r := range answers {
		response, err := http.ReadResponse(r, nil)
		for err == nil && response.StatusCode == http.StatusProcessing {
			response, err = http.ReadResponse(r, nil)
		}
		require.NoError(t, err)
		require.Equal(t, 200, response.StatusCode)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Equal(t, "{}", string(body))
	}
}

// TestPluginsRunAtTheSameTime: calls for different containers run at the same time,
// calls for one container do not, and STATUS waits for none.
func TestPluginsRunAtTheSameTime(t *testing.T) {
	requireRoot(t)
	begun, release, queue := make(chan string, 8), make(chan struct{}), &counter{}
	socket, _ := apitest.Serve(t, api.Options{Queue: queue, Plugin: func(ctx context.Context, c dropin.Call) (*dropin.Answer, error) {
		if c.Env.Command != cni.Status {
			begun <- c.Env.ContainerID
			await(ctx, release)
		}
		return &dropin.Answer{}, nil
	}})
	done := make(chan answer, 8)
	for _, id := range []string{"a", "b", "b", "c"} {
		go func() {
			got, _ := try(t.Context(), socket, "POST", "/cni/plugins/bridge", "{}", calling("ADD", id)...)
			done <- got
		}()
	}
	require.ElementsMatch(t, []string{"a", "b", "c"}, []string{receive(t, begun), receive(t, begun), receive(t, begun)})
	require.Eventually(t, queue.is(1, 3), soon, time.Millisecond)
	require.Equal(t, 204, ask(t, socket, "POST", "/cni/plugins/bridge", "{}", calling("STATUS", "b")...).status)
	close(release)
	for range 4 {
		require.Equal(t, 204, receive(t, done).status)
	}
	require.Equal(t, "b", receive(t, begun))
}

// TestPluginsAreBounded: a call beyond the limits is refused at once.
func TestPluginsAreBounded(t *testing.T) {
	requireRoot(t)
	begun, release := make(chan struct{}), make(chan struct{})
	socket := plugins(t, api.Limits{Operations: 1, Queue: 1, PerAllocation: 1}, func(ctx context.Context, _ dropin.Call) (*dropin.Answer, error) {
		close(begun)
		await(ctx, release)
		return &dropin.Answer{}, nil
	})
	done := make(chan answer, 1)
	go func() {
		got, _ := try(t.Context(), socket, "POST", "/cni/plugins/bridge", "{}", calling("ADD", "a")...)
		done <- got
	}()
	<-begun
	got := ask(t, socket, "POST", "/cni/plugins/portmap", "{}", calling("ADD", "a")...)
	require.Equal(t, 429, got.status)
	close(release)
	require.Equal(t, 204, receive(t, done).status)
}

// TestPluginEnds: a call ends when its client disconnects and when its time is over.
func TestPluginEnds(t *testing.T) {
	requireRoot(t)
	begun, ended := make(chan struct{}, 1), make(chan error, 1)
	socket := plugins(t, api.Limits{OperationTimeout: 2 * time.Second}, func(ctx context.Context, _ dropin.Call) (*dropin.Answer, error) {
		begun <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _, _ = try(ctx, socket, "POST", "/cni/plugins/bridge", "{}", calling("ADD", "a")...) }()
	receive(t, begun)
	cancel()
	require.ErrorIs(t, receive(t, ended), context.Canceled)
	require.Equal(t, 504, ask(t, socket, "POST", "/cni/plugins/bridge", "{}", calling("ADD", "a")...).status)
	require.ErrorIs(t, receive(t, ended), context.DeadlineExceeded)
}
