package main

import (
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cmd/internal/cni"
)

// short is an idle timeout that a working daemon does not exceed and a hanging one
// exceeds soon.
const short = 300 * time.Millisecond

var request = []byte(`{"env":{},"config":{"name":"<net>"}}`)

// large is more than a socket buffers while the other side does not read.
var large = []byte(strings.Repeat("x", cni.MaxRequest))

// callOn sends a request to the daemon on a socket.
func callOn(socket string, request []byte) (*answer, error) {
	return callUntil(socket, request, time.Now().Add(longest))
}

func callUntil(socket string, request []byte, until time.Time) (*answer, error) {
	o := &options{socket: socket, idle: short}
	return o.call(request, until)
}

// listen serves HTTP on a new socket and returns its path.
func listen(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	s := &http.Server{Handler: handler}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return path
}

func answers(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestCall(t *testing.T) {
	var method, path, body string
	socket := listen(t, func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		method, path, body = r.Method, r.URL.Path, string(data)
		answers(200, `{"result":{"cniVersion":"1.0.0"}}`)(w, r)
	})
	response, err := callOn(socket, request)
	require.NoError(t, err)
	require.Equal(t, `{"cniVersion":"1.0.0"}`, string(response.Result))
	require.Nil(t, response.Error)
	require.Equal(t, []string{"POST", "/cni"}, []string{method, path})
	require.Equal(t, string(request), body)
}

func TestAnswersOfCall(t *testing.T) {
	for _, test := range []struct {
		name   string
		status int
		body   string
		want   string
		err    error
	}{
		{"success without a result", 200, "\n{}\n", "", nil},
		{"an error of a plugin", 200, `{"error":{"cniVersion":"1.0.0","code":123,"msg":"m","details":"d"}}`, `{"cniVersion":"1.0.0","code":123,"msg":"m","details":"d"}`, nil},
		{"busy", 429, `{"error":{"kind":"busy","message":"full"}}`, `{"cniVersion":"1.1.0","code":11,"msg":"allocnetd refused the request: HTTP status 429","details":"full"}`, nil},
		{"forbidden", 403, `{"error":{"kind":"forbidden","message":"no"}}`, `{"cniVersion":"1.1.0","code":999,"msg":"allocnetd refused the request: HTTP status 403","details":"no"}`, nil},
		{"another server", 404, `not here`, `{"cniVersion":"1.1.0","code":999,"msg":"allocnetd refused the request: HTTP status 404"}`, nil},
		{"no JSON", 200, `not here`, "", errNoAnswer},
		{"another JSON", 200, `{"result":{},"more":1}`, "", errNoAnswer},
	} {
		t.Run(test.name, func(t *testing.T) {
			response, err := callOn(listen(t, answers(test.status, test.body)), request)
			require.ErrorIs(t, err, test.err)
			if test.err == nil {
				require.Equal(t, test.want, string(response.Error))
				require.Nil(t, response.Result)
			}
		})
	}
}

// TestSlowIsNotHung serves an operation that lasts longer than the idle timeout.
func TestSlowIsNotHung(t *testing.T) {
	socket := listen(t, func(w http.ResponseWriter, r *http.Request) {
		keepalive := time.NewTicker(short / 2)
		defer keepalive.Stop()
		for range 12 {
			<-keepalive.C
			_, _ = w.Write([]byte("\n"))
			w.(http.Flusher).Flush()
		}
		answers(200, `{"error":{"code":7}}`)(w, r)
	})
	patient := &options{socket: socket, idle: 5 * short}
	response, err := patient.call(request, time.Now().Add(longest))
	require.NoError(t, err)
	require.JSONEq(t, `{"code":7}`, string(response.Error))
}

// TestKeepalivesForEver checks that a call ends in time although keepalives go on.
func TestKeepalivesForEver(t *testing.T) {
	gone := make(chan struct{})
	socket := listen(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		keepalive := time.NewTicker(short / 20)
		defer keepalive.Stop()
		for r.Context().Err() == nil {
			<-keepalive.C
			_, _ = w.Write([]byte("\n"))
			w.(http.Flusher).Flush()
		}
	})
	_, err := callUntil(socket, request, time.Now().Add(short))
	require.ErrorIs(t, err, errNoAnswer)
	require.ErrorContains(t, err, "it took too long")
	<-gone // the daemon sees the end of the connection
}

// TestHung has daemons that stop answering at different points.
func TestHung(t *testing.T) {
	for name, serve := range map[string]func(*net.UnixListener){
		"does not accept": func(*net.UnixListener) {},
		"does not read":   func(l *net.UnixListener) { _, _ = l.Accept() },
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "socket")
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
			require.NoError(t, err)
			defer l.Close()
			go serve(l)
			for _, r := range [][]byte{request, large} {
				_, err = callOn(socket, r)
				require.ErrorIs(t, err, errNoAnswer)
			}
		})
	}
}

// TestFullBacklog fills the backlog of a socket on which no process accepts.
func TestFullBacklog(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "socket")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer syscall.Close(fd)
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrUnix{Name: socket}))
	require.NoError(t, syscall.Listen(fd, 0))
	first, err := net.Dial("unix", socket)
	require.NoError(t, err)
	defer first.Close()
	_, err = callOn(socket, request)
	require.ErrorIs(t, err, errNoAnswer)
	require.ErrorContains(t, err, "connect to")
}

func TestNotReachable(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	dies := listen(t, func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) })
	diesLater := listen(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("\n"))
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	for name, socket := range map[string]string{
		"no socket": filepath.Join(dir, "none"), "no directory": filepath.Join(dir, "none", "none"), "no listener": stale,
		"it dies": dies, "it dies after a keepalive": diesLater,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := callOn(socket, request)
			require.ErrorIs(t, err, errNotReachable)
			require.NotErrorIs(t, err, errNoAnswer)
		})
	}
}

// TestAnswerBeforeTheEndOfTheRequest refuses a request before it was read completely.
func TestAnswerBeforeTheEndOfTheRequest(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "socket")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	require.NoError(t, err)
	defer l.Close()
	go func() {
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
		_ = c.Close()
	}()
	response, err := callOn(socket, large)
	require.NoError(t, err)
	require.Contains(t, string(response.Error), `"code":999`)
}

func TestEncode(t *testing.T) {
	r := cni.Request{
		Env:    cni.Env{Command: "ADD", ContainerID: "c", IfName: "eth0", Args: "A=\"\\\n\u2028<", Path: "/a:/b", NetnsOverride: "1"},
		Config: []byte(`{ "name":"<net>"}`),
	}
	body, err := encode(r)
	require.NoError(t, err)
	require.JSONEq(t, `{"env":{"CNI_COMMAND":"ADD","CNI_CONTAINERID":"c","CNI_IFNAME":"eth0","CNI_ARGS":"A=\"\\\n\u2028<","CNI_PATH":"/a:/b","CNI_NETNS_OVERRIDE":"1"},"config":{"name":"<net>"}}`, string(body))
	require.Contains(t, string(body), string(r.Config), "as it was read")
	r.Env.Args = strings.Repeat("x", cni.MaxRequest)
	_, err = encode(r)
	require.EqualError(t, err, "CNI error 4: environment and configuration take more than 1048576 bytes")
}

// TestResume takes over a connection on which the request was sent. For a descriptor
// that is not a connection, the daemon counts as not reachable.
func TestResume(t *testing.T) {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	daemon := os.NewFile(uintptr(ends[1]), "daemon")
	_, err = io.WriteString(daemon, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}\n")
	require.NoError(t, err)
	o := &options{socket: "/s", idle: short}
	response, err := o.resume(ends[0])
	require.NoError(t, err)
	require.Equal(t, &answer{}, response)
	_, err = daemon.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "the connection is closed")
	require.NoError(t, daemon.Close())

	file, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	require.NoError(t, err)
	_, err = o.resume(file)
	require.ErrorIs(t, err, errNotReachable)
	require.ErrorContains(t, err, "take over the connection to /s")
}
