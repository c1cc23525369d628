package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/wire"
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(peerSocket); socket != "" && os.Getenv(peerPlugin) != "" {
		os.Exit(callAsPeer(socket))
	} else if socket != "" {
		os.Exit(actAsPeer(socket, os.Getenv(peerConflists) != ""))
	}
	if socket := os.Getenv(crowdSocket); socket != "" {
		os.Exit(actAsCrowd(socket))
	}
	os.Exit(m.Run())
}

// soon is the longest time to wait for an expected event.
const soon = 20 * time.Second

// caller sends each request on a new connection.
func caller(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		DisableKeepAlives: true,
	}}
}

// answer is a completely read response.
type answer struct {
	status int
	header http.Header
	body   string
}

// failure returns the error of an answer.
func (a answer) failure(t *testing.T) *wire.Error {
	t.Helper()
	var f wire.Failure
	require.NoError(t, json.Unmarshal([]byte(a.body), &f), a.body)
	require.NotNil(t, f.Error, a.body)
	return f.Error
}

// ask sends a request with further header lines.
func ask(t *testing.T, socket, method, path, body string, header ...string) answer {
	t.Helper()
	got, err := try(t.Context(), socket, method, path, body, header...)
	require.NoError(t, err)
	return got
}

func try(ctx context.Context, socket, method, path, body string, header ...string) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://x"+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return answer{}, err
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response, err := caller(socket).Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(data)}, err
}

// dial connects and sends a text unchanged.
func dial(t *testing.T, socket, text string) *net.UnixConn {
	t.Helper()
	c, err := net.Dial("unix", socket)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_, err = io.WriteString(c, text)
	require.NoError(t, err)
	require.NoError(t, c.SetDeadline(time.Now().Add(soon)))
	return c.(*net.UnixConn)
}

// request returns an HTTP request as text.
func request(method, path, body string) string {
	return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body)
}

// receive waits for a value.
func receive[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(soon):
		require.FailNow(t, "nothing came")
	}
	return v
}
