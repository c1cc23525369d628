package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/internal/testing/programs"
)

// said holds what a plugin printed and the request that it sent to the daemon.
type said struct {
	out, sent string
	code      int
}

// TestShim checks that allocnet-cni-shim does exactly what allocnet-cni does.
func TestShim(t *testing.T) {
	w := newWorkspace(t)
	built, err := programs.Dir()
	require.NoError(t, err)
	sent := make(chan string, 8)
	var handler atomic.Pointer[http.HandlerFunc]
	serve := func(h http.HandlerFunc) { handler.Store(&h) }
	serve(answering(200, `{"result":`+added+`}`))
	l, err := net.Listen("unix", w.path("sock"))
	require.NoError(t, err)
	s := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		sent <- fmt.Sprintf("%s %s %s", r.Method, r.URL, meaning(body))
		(*handler.Load())(rw, r)
	})}
	go func() { _ = s.Serve(l) }()
	defer s.Close()

	run := func(dir, program, config string, environ ...string) (one said) {
		c := exec.Command(filepath.Join(dir, program))
		c.Env = append([]string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_NETNS=/netns", "CNI_IFNAME=eth0"}, environ...)
		c.Stdin = strings.NewReader(config)
		out, err := c.Output()
		if err != nil {
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			one.code = exit.ExitCode()
		}
		one.out = string(out)
		for len(sent) > 0 {
			one.sent += <-sent
		}
		return one
	}
	same := func(t *testing.T, dir string, config string, environ ...string) said {
		want := run(dir, "allocnet-cni", config, environ...)
		require.Equal(t, want, run(dir, "allocnet-cni-shim", config, environ...), "%.300s", config)
		return want
	}
	conf := func(more string) string {
		return `{"cniVersion":"1.0.0","socket":"` + w.path("sock") + `","settings":"` + w.path("allocnetd.hcl") + `"` + more + `}`
	}

	t.Run("configurations", func(t *testing.T) {
		inner := `,"plugins":[{"socket":"/nowhere","idleTimeout":7,"x":"}]\\\"{"},[[],{}],-1.5e3,true,null]`
		for _, config := range []string{
			conf(""), conf(inner), " \n{ \"a\" : { } ,\t" + conf("")[1:] + "\r\n", `{"x":{"socket":"/a"},` + conf(inner)[1:],
			`{"socket":"/nowhere",` + conf("")[1:], conf(`,"idleTimeout":"2s"`), conf(`,"patience":"2s"`), conf(`,"cniVersion":"0.4.0","name":"n\u00e9t"`), conf(`,"cniVersion":7`), conf(`,"cniVersion":"\u0031.0.0"`),
			`{"\u0073ocket":"` + w.path("sock") + `"}`, `{"socket":"` + strings.ReplaceAll(w.path("sock"), "/", `\/`) + `"}`,
			conf(`,"k\"":1`), conf(`,"é":"é"`), conf(`,"a":"` + strings.Repeat("x", 60<<10) + `"`), conf(`,"a":"` + strings.Repeat("x", 64<<10) + `"`),
			conf(`,"a":"` + strings.Repeat("x", 300<<10) + `"`), conf(`,"a":"` + strings.Repeat("x", 600<<10) + `"`),
		} {
			same(t, built, config)
		}
		got := run(built, "allocnet-cni-shim", conf(inner))
		require.Contains(t, got.sent, conf(inner))
	})
	t.Run("bad configurations", func(t *testing.T) {
		for _, config := range []string{
			"", "{", "[]", "null", "{}x", conf("") + "x", conf(","), conf(`,"a"`), conf(`,"a":`), conf(`,"a":"`), conf(`,"a":{`), conf(`,"a":1 2`),
			`{"socket":7}`, `{"socket":"sock"}`, `{"socket":""}`, `{"socket":"/` + strings.Repeat("s", 200) + `"}`, conf(`,"idleTimeout":7`), conf(`,"patience":7`), conf("\x00"),
		} {
			got := run(built, "allocnet-cni-shim", config)
			require.Equal(t, 1, got.code, "%.300s", config)
			var e map[string]any
			require.NoError(t, json.Unmarshal([]byte(got.out), &e), got.out)
		}
	})
	t.Run("environments", func(t *testing.T) {
		for _, environ := range []string{
			"CNI_ARGS=A=b;C=d", `CNI_ARGS=A="\`, "CNI_ARGS=\t", "CNI_ARGS=é", "CNI_ARGS=\xff", "CNI_ARGS=" + strings.Repeat("a", 1025), "CNI_CONTAINERID=",
			"CNI_PATH=/a:/b", "CNI_PATH=/" + strings.Repeat("a", 1024), "CNI_PATH=\xff", "CNI_NETNS_OVERRIDE=1",
			"CNI_COMMAND=DEL", "CNI_COMMAND=CHECK", "CNI_COMMAND=GC", "CNI_COMMAND=STATUS", "CNI_COMMAND=VERSION", "CNI_COMMAND=", "CNI_COMMAND=ADDS",
			"ALLOCNET_CALLER=x", "ALLOCNET_CALLER=",
		} {
			same(t, built, conf(""), environ)
		}
	})
	t.Run("answers", func(t *testing.T) {
		for name, answer := range map[string]http.HandlerFunc{
			"result":        answering(200, `{"result":{"cniVersion":"1.0.0","ips":[{"a":"}"}]}}`+"\n"),
			"no addresses":  answering(200, `{"result":{"cniVersion":"1.0.0"}}`+"\n"),
			"error":         answering(200, `{"error":{"code":7,"msg":"m"}}`),
			"another order": answering(200, ` {"result":`+added+`}`),
			"other keys":    answering(200, `{"result":`+added+`,"x":1}`),
			"busy":          answering(429, `{"error":{"kind":"busy","message":"full"}}`),
			"large":         answering(200, `{"result":{"cniVersion":"1.0.0","ips":[{"x":"`+strings.Repeat("x", 3<<10)+`"}]}}`),
			"larger":        answering(200, `{"result":{"cniVersion":"1.0.0","ips":[{"x":"`+strings.Repeat("x", 200<<10)+`"}]}}`),
			"late": func(rw http.ResponseWriter, r *http.Request) {
				<-time.After(400 * time.Millisecond)
				answering(200, `{"result":`+added+`}`)(rw, r)
			},
			"in two pieces": func(rw http.ResponseWriter, _ *http.Request) { pieces(rw, "\n", `{"result":`+added+`}`) },
			"and a long one": func(rw http.ResponseWriter, _ *http.Request) {
				pieces(rw, "\n", "\n", `{"error":{"code":11,"msg":"x"}}`)
			},
		} {
			serve(answer)
			got := same(t, built, conf(""))
			require.NotEmpty(t, got.sent, name)
			if name != "other keys" {
				require.NotContains(t, got.out, "not the expected object", name)
			}
		}
	})
	t.Run("no answers", func(t *testing.T) {
		for i, command := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS"} {
			for j, body := range broken(command) {
				if testing.Short() && command != "ADD" && (i+j)%4 != 0 {
					continue // those without a result are read alike
				}
				serve(answering(200, body))
				got := same(t, built, conf(""), "CNI_COMMAND="+command)
				require.Equal(t, 1, got.code, "%s %s", command, body)
				var e map[string]any
				require.NoError(t, json.Unmarshal([]byte(got.out), &e), "%s %s: %s", command, body, got.out)
				require.NotZero(t, e["code"])
				require.NotEmpty(t, e["msg"])
			}
			if command != "ADD" {
				serve(answering(200, "{}\n"))
				got := same(t, built, conf(""), "CNI_COMMAND="+command)
				require.Equal(t, said{sent: got.sent}, got)
			}
		}
	})
	t.Run("usual answers", func(t *testing.T) { // need no other program
		single := w.path("single")
		require.NoError(t, os.Mkdir(single, 0o755))
		data, err := os.ReadFile(filepath.Join(built, "allocnet-cni-shim"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(single, "allocnet-cni-shim"), data, 0o755))
		for _, answer := range []struct {
			command string
			said    cni.Response
			out     string
			code    int
		}{
			{"ADD", cni.Response{Result: []byte(added)}, added, 0},
			{"ADD", cni.Response{Error: &cni.Error{CNIVersion: "1.0.0", Code: 7, Msg: "<m>"}}, `{"cniVersion":"1.0.0","code":7,"msg":"\u003cm\u003e"}`, 1},
			{"DEL", cni.Response{}, "", 0},
			{"CHECK", cni.Response{}, "", 0},
		} {
			body, err := json.Marshal(answer.said)
			require.NoError(t, err)
			serve(answering(200, string(body)+"\n"))
			got := run(single, "allocnet-cni-shim", conf(""), "CNI_COMMAND="+answer.command)
			require.Equal(t, []any{answer.out, answer.code}, []any{got.out, got.code})
		}
	})
	t.Run("descriptors", func(t *testing.T) {
		serve(answering(200, `{"result":`+added+`}`))
		var ends [2]int
		require.NoError(t, syscall.Pipe2(ends[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK))
		r, in := os.NewFile(uintptr(ends[0]), "r"), os.NewFile(uintptr(ends[1]), "in")
		defer r.Close()
		c := exec.Command(filepath.Join(built, "allocnet-cni-shim"))
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
		require.Equal(t, added, out.String())
		<-sent

		closed := exec.Command("sh", "-c", `"$0" <"$1" >&-`, filepath.Join(built, "allocnet-cni-shim"), w.path("config"))
		closed.Env = c.Env
		w.write("config", conf(""))
		require.NoError(t, closed.Run(), "with stdout closed there is no reader")
		<-sent
	})
	// Random configurations, bodies, and whole responses with the one header field that
	// the shim reads. ALLOCNET_CNI_TEST_RANDOM sets the duration, such as "5m"; SEED
	// repeats a run. For sanitizers, set CFLAGS and LDFLAGS to
	// -fsanitize=address,undefined.
	t.Run("random", func(t *testing.T) {
		seed, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64)
		if err != nil {
			seed = rand.Uint64()
		}
		t.Logf("SEED=%d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		until := time.Now()
		if d, err := time.ParseDuration(os.Getenv("ALLOCNET_CNI_TEST_RANDOM")); err == nil {
			until = until.Add(d)
		}
		rounds := 100
		if testing.Short() {
			rounds = 36
		}
		for i := 0; i < rounds || time.Now().Before(until); i++ {
			body, config := `{"result":`+added+`}`, conf(`,"a":[1,{"b":"\u00e9"},-1.5e3,null]`)
			if i%4 == 1 {
				body = `{"error":{"cniVersion":"1.0.0","code":7,"msg":"m\n","details":"d"}}`
			}
			response := "HTTP/1.1 200 OK\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
			switch i % 3 {
			case 0:
				body = mutated(random, body)
				serve(answering(200, body))
			case 1:
				config = mutated(random, config)
				serve(answering(200, body))
			default:
				response = mutated(random, response)
				serve(func(rw http.ResponseWriter, _ *http.Request) {
					if c, _, err := rw.(http.Hijacker).Hijack(); err == nil {
						_, _ = io.WriteString(c, response)
						_ = c.Close()
					}
				})
			}
			if got := same(t, built, config); got.code == 0 {
				require.True(t, json.Valid([]byte(got.out)), "%q %q", body, response)
				require.Contains(t, got.out, `"cniVersion"`)
			}
		}
	})
	require.NoError(t, os.Remove(w.path("sock")))
}

// TestShimDefaultSocket checks that the shim has the default socket of the client.
func TestShimDefaultSocket(t *testing.T) {
	source, err := os.ReadFile("shim/common.h")
	require.NoError(t, err)
	require.Contains(t, string(source), fmt.Sprintf("#define DEFAULT_SOCKET %q\n", client.DefaultSocket))
}

// meaning returns a request without its empty variables, which are optional. The
// configuration is unchanged.
func meaning(body []byte) string {
	env, config, _ := strings.Cut(string(body), `,"config":`)
	var r struct{ Env cni.Env }
	if err := json.Unmarshal([]byte(env+"}"), &r); err != nil {
		return fmt.Sprintf("%v: %s", err, body)
	}
	return fmt.Sprintf("%+v %s", r.Env, strings.TrimSuffix(config, "}"))
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

// added is the result of an ADD.
const added = `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/netns"}],"ips":[{"address":"10.0.0.2/24"}],"dns":{}}`

// broken returns bodies of the daemon that are not valid answers to a command.
func broken(command string) []string {
	bodies := []string{
		"", " ", "null", "[]", "{", "true", `"{}"`, "{}{}", "{}x", `{"result":null}`, `{"error":null}`, `{"result":{},"error":{}}`,
		`{"result":` + added + `,"error":{"code":7,"msg":"m"}}`, `{"result":` + added + `,"result":` + added + `}`, `{"result":` + added + `}x`,
		`{"error":{}}`, `{"error":{"cniVersion":"1.0.0","code":0,"msg":"m"}}`, `{"error":{"cniVersion":"1.0.0","code":7}}`, `{"error":{"code":"7","msg":"m"}}`,
		`{"error":{"cniVersion":"1.0.0","code":7.5,"msg":"m"}}`, `{"error":{"cniVersion":"1.0.0","code":70000000000,"msg":"m"}}`, `{"error":{"code":7,"msg":null}}`,
		`{"error":[]}`, `{"error":"no"}`, `{"error":{"code":7,"msg":"m"}`, `{"error":{"code":7,"msg":"m",x}}`,
	}
	if command != "ADD" {
		return append(bodies, `{"result":{}}`, `{"result":`+added+`}`)
	}
	for _, result := range []string{
		"{}", "[]", `"x"`, "7", `{"ips":[{"address":"10.0.0.2/24"}]}`, `{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.2/24"}]}`,
		`{"x":{"cniVersion":"1.0.0"}}`, `{"cniVersion":"1.0.0","ips":[{]}`,
		`{"cniVersion":"1.0.0","cniVersion":null,"ips":[{}]}`, `{"cniVersion":"1.0.0","ips":[{}],"x":"\x"}`, `{"cniVersion":"1.0.0","ips":[{}],"x":01}`,
	} {
		bodies = append(bodies, `{"result":`+result+`}`)
	}
	return append(bodies, "{}", "{}\n")
}

// mutated returns a text with some of its bytes removed, doubled or replaced.
func mutated(random *rand.Rand, text string) string {
	body := []byte(text)
	for range 1 + random.IntN(3) {
		at := random.IntN(len(body))
		switch random.IntN(3) {
		case 0:
			body = append(body[:at], body[at+1:]...)
		case 1:
			body = append(body[:at+1], body[at:]...)
		default:
			body[at] = "{}[]\",:\\01e-. \x00\xff"[random.IntN(16)]
		}
	}
	return string(body)
}
