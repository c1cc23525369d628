package thin

import (
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// short is a patience that is not used up by a daemon that is alive, and soon by one
// that is not.
const short = 300 * time.Millisecond

var request = []byte(`{"env":{},"config":{"name":"<net>"}}`)

// large is more than a socket takes while nobody reads.
var large = []byte(strings.Repeat("x", MaxRequest))

// listen is a socket with an HTTP server.
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
	response, err := Call(socket, short, request)
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
		{"no JSON", 200, `not here`, "", ErrHung},
		{"another JSON", 200, `{"result":{},"more":1}`, "", ErrHung},
	} {
		t.Run(test.name, func(t *testing.T) {
			response, err := Call(listen(t, answers(test.status, test.body)), short, request)
			require.ErrorIs(t, err, test.err)
			if test.err == nil {
				require.Equal(t, test.want, string(response.Error))
				require.Nil(t, response.Result)
			}
		})
	}
}

// TestSlowIsNotHung: the operation lasts longer than the plugin's patience.
func TestSlowIsNotHung(t *testing.T) {
	socket := listen(t, func(w http.ResponseWriter, r *http.Request) {
		beat := time.NewTicker(short / 6)
		defer beat.Stop()
		for range 12 {
			<-beat.C
			_, _ = w.Write([]byte("\n"))
			w.(http.Flusher).Flush()
		}
		answers(200, `{"error":{"code":7}}`)(w, r)
	})
	response, err := Call(socket, short, request)
	require.NoError(t, err)
	require.JSONEq(t, `{"code":7}`, string(response.Error))
}

// TestAliveForEver ends all the same.
func TestAliveForEver(t *testing.T) {
	gone := make(chan struct{})
	socket := listen(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		beat := time.NewTicker(short / 20)
		defer beat.Stop()
		for r.Context().Err() == nil {
			<-beat.C
			_, _ = w.Write([]byte("\n"))
			w.(http.Flusher).Flush()
		}
	})
	_, err := call(socket, short, time.Now().Add(short), request)
	require.ErrorIs(t, err, ErrHung)
	require.ErrorContains(t, err, "no sign of life")
	<-gone // the daemon is told
}

// TestHung are daemons that do not answer, at every point.
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
				_, err = Call(socket, short, r)
				require.ErrorIs(t, err, ErrHung)
			}
		})
	}
}

// TestFullBacklog: a socket on which nobody accepts takes some connections, then the
// kernel has the next one wait.
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
	_, err = Call(socket, short, request)
	require.ErrorIs(t, err, ErrHung)
	require.ErrorContains(t, err, "connect to")
}

func TestAway(t *testing.T) {
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
		"no socket": filepath.Join(dir, "none"), "no directory": filepath.Join(dir, "none", "none"), "nobody listens": stale,
		"it dies": dies, "it dies after a sign of life": diesLater,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Call(socket, short, request)
			require.ErrorIs(t, err, ErrAway)
			require.NotErrorIs(t, err, ErrHung)
		})
	}
}

// TestAnswerBeforeTheEndOfTheRequest is what a refusal may be.
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
	response, err := Call(socket, short, large)
	require.NoError(t, err)
	require.Contains(t, string(response.Error), `"code":999`)
}

func TestRequest(t *testing.T) {
	body, err := Request([]string{"ADD", "c", "", "eth0", "A=\"\\\n\u2028<", "/a:/b", "1"}, []byte(`{"name":"<net>"}`))
	require.NoError(t, err)
	require.JSONEq(t, `{"env":{"CNI_COMMAND":"ADD","CNI_CONTAINERID":"c","CNI_NETNS":"","CNI_IFNAME":"eth0","CNI_ARGS":"A=\"\\\n\u2028<","CNI_PATH":"/a:/b","CNI_NETNS_OVERRIDE":"1"},"config":{"name":"<net>"}}`, string(body))
	_, err = Request([]string{"", "", "", "", strings.Repeat("x", MaxRequest), "", ""}, []byte(`{}`))
	require.EqualError(t, err, "CNI error 4: environment and configuration take more than 1048576 bytes")
}
