package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// said is what a plugin printed, and what it asked the daemon for.
type said struct {
	out, asked string
	code       int
}

// TestFront does all that allocnet-cni does, and nothing else.
func TestFront(t *testing.T) {
	w := newWorld(t)
	built, err := programs()
	require.NoError(t, err)
	asked, serve := make(chan string, 8), answering(200, `{"result":{"cniVersion":"1.0.0"}}`)
	l, err := net.Listen("unix", w.path("sock"))
	require.NoError(t, err)
	s := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked <- fmt.Sprintf("%s %s %d %s", r.Method, r.URL, r.ContentLength, body)
		serve(rw, r)
	})}
	go func() { _ = s.Serve(l) }()
	defer s.Close()

	run := func(program, config string, environ ...string) (one said) {
		c := exec.Command(filepath.Join(built, program))
		c.Env = append([]string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_NETNS=/netns", "CNI_IFNAME=eth0"}, environ...)
		c.Stdin = strings.NewReader(config)
		out, err := c.Output()
		if err != nil {
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			one.code = exit.ExitCode()
		}
		one.out = string(out)
		for len(asked) > 0 {
			one.asked += <-asked
		}
		return one
	}
	same := func(t *testing.T, config string, environ ...string) said {
		want := run("allocnet-cni", config, environ...)
		require.Equal(t, want, run("allocnet-cni-front", config, environ...), "%.300s", config)
		return want
	}
	conf := func(more string) string { return `{"socket":"` + w.path("sock") + `"` + more + `}` }

	t.Run("configurations", func(t *testing.T) {
		inner := `,"plugins":[{"socket":"/nowhere","patience":7,"x":"}]\\\"{"},[[],{}],-1.5e3,true,null]`
		for _, config := range []string{
			conf(""), conf(inner), " \n{ \"a\" : { } ,\t" + conf("")[1:] + "\r\n", `{"x":{"socket":"/a"},` + conf(inner)[1:],
			`{"socket":"/nowhere",` + conf("")[1:], conf(`,"patience":"2s"`), conf(`,"cniVersion":"0.4.0","name":"n\u00e9t"`),
			`{"\u0073ocket":"` + w.path("sock") + `"}`, `{"socket":"` + strings.ReplaceAll(w.path("sock"), "/", `\/`) + `"}`,
			conf(`,"k\"":1`), conf(`,"é":"é"`), conf(`,"a":"` + strings.Repeat("x", 60<<10) + `"`), conf(`,"a":"` + strings.Repeat("x", 64<<10) + `"`),
			conf(`,"a":"` + strings.Repeat("x", 300<<10) + `"`), conf(`,"a":"` + strings.Repeat("x", 600<<10) + `"`),
		} {
			same(t, config)
		}
		got := run("allocnet-cni-front", conf(inner))
		require.Contains(t, got.asked, conf(inner)+"}")
	})
	t.Run("bad configurations", func(t *testing.T) {
		for _, config := range []string{
			"", "{", "[]", "null", "{}x", conf("") + "x", conf(","), conf(`,"a"`), conf(`,"a":`), conf(`,"a":"`), conf(`,"a":{`), conf(`,"a":1 2`),
			`{"socket":7}`, `{"socket":"sock"}`, `{"socket":""}`, `{"socket":"/` + strings.Repeat("s", 200) + `"}`, conf(`,"patience":7`), conf("\x00"),
		} {
			got := run("allocnet-cni-front", config)
			require.Equal(t, 1, got.code, "%.300s", config)
			var e map[string]any
			require.NoError(t, json.Unmarshal([]byte(got.out), &e), got.out)
		}
	})
	t.Run("environments", func(t *testing.T) {
		for _, environ := range []string{
			"CNI_ARGS=A=b;C=d", `CNI_ARGS=A="\`, "CNI_ARGS=\t", "CNI_ARGS=é", "CNI_ARGS=\xff", "CNI_ARGS=" + strings.Repeat("a", 1025), "CNI_CONTAINERID=",
			"CNI_COMMAND=DEL", "CNI_COMMAND=CHECK", "CNI_COMMAND=GC", "CNI_COMMAND=STATUS", "CNI_COMMAND=VERSION", "CNI_COMMAND=", "CNI_COMMAND=ADDS",
			"ALLOCNET_CALLER=x", "ALLOCNET_CALLER=",
		} {
			same(t, conf(""), environ)
		}
	})
	t.Run("answers", func(t *testing.T) {
		for name, answer := range map[string]http.HandlerFunc{
			"result":        answering(200, "{\"result\":{\"ips\":[{\"a\":\"}\"}]}}\n"),
			"nothing":       answering(200, "{}\n"),
			"error":         answering(200, `{"error":{"code":7,"msg":"m"}}`),
			"another order": answering(200, ` {"result":{}}`),
			"other keys":    answering(200, `{"result":{},"x":1}`),
			"busy":          answering(429, `{"error":{"kind":"busy","message":"full"}}`),
			"large":         answering(200, `{"result":{"x":"`+strings.Repeat("x", 3<<10)+`"}}`),
			"larger":        answering(200, `{"result":{"x":"`+strings.Repeat("x", 200<<10)+`"}}`),
			"late": func(rw http.ResponseWriter, r *http.Request) {
				<-time.After(400 * time.Millisecond)
				answering(200, `{"result":{}}`)(rw, r)
			},
			"in two pieces": func(rw http.ResponseWriter, _ *http.Request) { pieces(rw, "\n", `{"result":{}}`) },
			"and a long one": func(rw http.ResponseWriter, _ *http.Request) {
				pieces(rw, "\n", "\n", `{"error":{"code":11,"msg":"x"}}`)
			},
		} {
			serve = answer
			got := same(t, conf(""))
			require.NotEmpty(t, got.asked, name)
			if name != "other keys" {
				require.NotContains(t, got.out, "not as agreed", name)
			}
		}
	})
	t.Run("descriptors", func(t *testing.T) {
		serve = answering(200, `{"result":{"cniVersion":"1.0.0"}}`)
		var ends [2]int
		require.NoError(t, syscall.Pipe2(ends[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK))
		r, in := os.NewFile(uintptr(ends[0]), "r"), os.NewFile(uintptr(ends[1]), "in")
		defer r.Close()
		c := exec.Command(filepath.Join(built, "allocnet-cni-front"))
		c.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_NETNS=/netns", "CNI_IFNAME=eth0"}
		var out strings.Builder
		c.Stdin, c.Stdout = r, &out
		require.NoError(t, c.Start())
		flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(ends[0]), syscall.F_GETFL, 0)
		require.Zero(t, errno)
		require.NotZero(t, flags&syscall.O_NONBLOCK)
		require.Eventually(t, func() bool { // it waits for more
			wchan, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", c.Process.Pid))
			return err == nil && !strings.HasPrefix(string(wchan), "running")
		}, 20*time.Second, time.Millisecond)
		_, err = io.WriteString(in, conf(""))
		require.NoError(t, err)
		require.NoError(t, in.Close())
		require.NoError(t, c.Wait())
		require.Equal(t, `{"cniVersion":"1.0.0"}`, out.String())
		<-asked

		closed := exec.Command("sh", "-c", `"$0" <"$1" >&-`, filepath.Join(built, "allocnet-cni-front"), w.path("config"))
		closed.Env = c.Env
		w.write("config", conf(""))
		require.NoError(t, closed.Run(), "who asked does not want to know")
		<-asked
	})
	require.NoError(t, os.Remove(w.path("sock")))
}

func answering(status int, body string) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) {
		rw.WriteHeader(status)
		_, _ = io.WriteString(rw, body)
	}
}

func pieces(rw http.ResponseWriter, texts ...string) {
	for _, text := range texts {
		_, _ = io.WriteString(rw, text)
		rw.(http.Flusher).Flush()
	}
}
