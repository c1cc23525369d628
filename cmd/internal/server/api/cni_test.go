package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/cmd/internal/server/api"
	"github.com/allocnet/allocnet/cmd/internal/server/apitest"
)

const add = `{"env":{"CNI_COMMAND":"ADD","CNI_CONTAINERID":"c","CNI_NETNS":"/n","CNI_IFNAME":"eth0","CNI_ARGS":"a=b"},"config":{"cniVersion":"1.0.0"}}`

// callCNI sends a request as the plugin does.
func callCNI(t *testing.T, socket string, r cni.Request) (response cni.Response) {
	t.Helper()
	body, err := json.Marshal(r)
	require.NoError(t, err)
	got := ask(t, socket, "POST", cni.Path, string(body))
	require.Equal(t, 200, got.status)
	require.NoError(t, json.Unmarshal([]byte(got.body), &response))
	return response
}

func TestCNIReachesTheService(t *testing.T) {
	arrived := make(chan cni.Request, 1)
	socket, _ := apitest.Serve(t, api.Options{CNI: func(_ context.Context, r cni.Request) cni.Response {
		arrived <- r
		return cni.Response{Result: []byte(`{"cniVersion":"1.0.0","ips":[]}`)}
	}})
	sent := cni.Request{
		Env:    cni.Env{Command: "ADD", ContainerID: "c", Netns: "/n", IfName: "eth0", Args: "a=b", Path: "/opt/cni/bin", NetnsOverride: "1"},
		Config: []byte(`{"cniVersion":"1.0.0"}`),
	}
	response := callCNI(t, socket, sent)
	sent.Root = os.Geteuid() == 0
	sent.Conflists = sent.Root
	require.Equal(t, sent, <-arrived)
	require.Equal(t, cni.Response{Result: []byte(`{"cniVersion":"1.0.0","ips":[]}`)}, response)

	newer := strings.Replace(add, `{"env":{`, `{"env":{"CNI_LATER":"1",`, 1)
	ask(t, socket, "POST", "/cni", newer)
	require.Equal(t, "a=b", (<-arrived).Env.Args, "unknown variables of a newer plugin are ignored")

	got := ask(t, socket, "POST", "/cni", add)
	require.Equal(t, "43", got.header.Get("Content-Length"), "a fast answer is sent in one piece")
	require.Equal(t, `{"result":{"cniVersion":"1.0.0","ips":[]}}`, strings.TrimSpace(got.body))
}

func TestCNIKeepalive(t *testing.T) {
	release := make(chan struct{})
	socket, _ := apitest.Serve(t, api.Options{CNI: func(ctx context.Context, _ cni.Request) cni.Response {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return cni.Response{Result: []byte(`{}`)}
	}})
	c := dial(t, socket, request("POST", "/cni", add))
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	defer response.Body.Close()
	beats := make([]byte, 1)
	_, err = io.ReadFull(response.Body, beats)
	require.NoError(t, err)
	require.Equal(t, "\n", string(beats))
	close(release)
	rest, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, `{"result":{}}`, strings.TrimSpace(string(rest)))
}

// TestCNIWithoutResult checks that an ADD without a result is an error.
func TestCNIWithoutResult(t *testing.T) {
	socket, _ := apitest.Serve(t, api.Options{CNI: func(context.Context, cni.Request) cni.Response { return cni.Response{} }})
	for command, want := range map[string]string{
		"ADD": `{"error":{"cniVersion":"1.0.0","code":999,"msg":"there is no result"}}`, "DEL": "{}", "CHECK": "{}",
	} {
		got := ask(t, socket, "POST", "/cni", `{"env":{"CNI_COMMAND":"`+command+`"},"config":{"cniVersion":"1.0.0"}}`)
		require.Equal(t, want, strings.TrimSpace(got.body))
	}
}

func TestCNIRefusals(t *testing.T) {
	options := api.Options{CNI: func(context.Context, cni.Request) cni.Response { return cni.Response{Result: []byte("{")} }}
	socket, _ := apitest.Serve(t, options)
	for body, want := range map[string]string{
		"":                               `"code":6,"msg":"malformed request: the body (line 1, column 1): is empty`,
		"{":                              `"code":6`,
		`{"env":{"PATH":1},"config":{}}`: `"code":6,"msg":"malformed request: env.PATH (line 1, column 16): must be a string`,
		`{"env":{"CNI_COMMAND":"ADD"},"config":{"password":"secret","password":"x"}}`: `config.password (line 1, column 60): is there twice`,
		`{"env":{"PATH":1},"config":{"cniVersion":"0.4.0"}}`:                          `{"cniVersion":"0.4.0","code":6,`,
		`{"config":{"cniVersion":"9.0.0"},"more":1}`:                                  `{"cniVersion":"1.1.0","code":6,`,
		add: `{"error":{"cniVersion":"1.0.0","code":999,"msg":"the result is not JSON"}}`,
	} {
		got := ask(t, socket, "POST", "/cni", body)
		require.Equal(t, 200, got.status)
		require.Contains(t, got.body, want)
		require.NotContains(t, got.body, "secret")
	}
	// The server answers before it has read the body, so a client may fail to write it.
	head := fmt.Sprintf("POST /cni HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", cni.MaxRequest+1)
	require.Contains(t, readAll(t, dial(t, socket, head)), `"code":6,"msg":"request is too large`)
	options.Limits.BodyTimeout = 200 * time.Millisecond
	socket, _ = apitest.Serve(t, options)
	require.Contains(t, readAll(t, dial(t, socket, cut(request("POST", "/cni", add)))), `"code":5`)
}

// TestCNIStatusDoesNotWait sends STATUS while all slots are taken.
func TestCNIStatusDoesNotWait(t *testing.T) {
	h := hold("held")
	socket, _ := apitest.Serve(t, h.options(api.Limits{Operations: 1, SlotTimeout: time.Hour}))
	wait := begin(t, socket, "held")
	receive(t, h.begun)
	for _, command := range []string{cni.Status, cni.Version} {
		response := callCNI(t, socket, cni.Request{Env: cni.Env{Command: command}, Config: []byte("{}")})
		require.Nil(t, response.Error)
	}
	close(h.release)
	wait()
}

// TestCNIOperationsAreBounded has two requests for one container; they share the slots of
// all operations.
func TestCNIOperationsAreBounded(t *testing.T) {
	queue, release := &counter{}, make(chan struct{})
	socket, _ := apitest.Serve(t, api.Options{
		CNI: func(context.Context, cni.Request) cni.Response {
			<-release
			return cni.Response{Result: []byte("{}")}
		},
		Queue: queue,
	})
	done := make(chan answer, 2)
	for range cap(done) {
		go func() {
			got, _ := try(t.Context(), socket, "POST", "/cni", add)
			done <- got
		}()
	}
	require.Eventually(t, queue.is(1, 1), soon, time.Millisecond)
	close(release)
	for range cap(done) {
		require.Equal(t, `{"result":{}}`, strings.TrimSpace(receive(t, done).body))
	}
	require.Eventually(t, queue.is(0, 0), soon, time.Millisecond)
}
