package client_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
)

// saying is a client of a daemon that gives everybody the same answer.
func saying(t *testing.T, answer http.HandlerFunc) *client.Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	s := &http.Server{Handler: answer}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return client.New(client.Config{Socket: socket})
}

func body(status int, kind, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

const (
	ajson  = "application/json"
	stream = "text/event-stream"
)

// call is one method of the client; good is an answer to it, "" for none.
type call struct {
	name, good string
	do         func(*testing.T, *client.Client) error
}

func calls() []call {
	a := allocnet.Allocation{ID: "a", Netns: "/run/netns/a"}
	return []call{
		{"Setup", `{"interfaceName":"eth0","address":"","interfaces":[{"network":"n","name":"eth0"}]}`, func(t *testing.T, c *client.Client) error {
			s, err := c.Setup(t.Context(), a)
			require.Equal(t, err == nil, s != nil)
			return err
		}},
		{"Setup of a new one", `{"created":true,"interfaceName":"eth0","address":"","interfaces":[{"network":"n","name":"eth0"}]}`, func(t *testing.T, c *client.Client) error {
			isNew := a
			isNew.MustBeNew = true
			_, err := c.Setup(t.Context(), isNew)
			return err
		}},
		{"Check", "", func(t *testing.T, c *client.Client) error { return c.Check(t.Context(), a) }},
		{"Teardown", "", func(t *testing.T, c *client.Client) error { return c.Teardown(t.Context(), a) }},
		{"GC", `{"removed":[],"kept":[]}`, func(t *testing.T, c *client.Client) error { _, err := c.GC(t.Context(), nil); return err }},
		{"PlanGC", `{"removed":[],"kept":[]}`, func(t *testing.T, c *client.Client) error {
			_, err := c.PlanGC(t.Context(), allocnet.Scope{})
			return err
		}},
		{"Repair", `{"healthy":[],"repaired":[],"broken":[]}`, func(t *testing.T, c *client.Client) error { _, err := c.Repair(t.Context()); return err }},
		{"Recover", `{"recovered":["a"]}`, func(t *testing.T, c *client.Client) error {
			_, err := c.RecoverScope(t.Context(), allocnet.Scope{Name: "mine"})
			return err
		}},
		{"List", `{"allocations":[]}`, func(t *testing.T, c *client.Client) error { _, err := c.List(t.Context()); return err }},
		{"Get", `{"id":"a","phase":"ready"}`, func(t *testing.T, c *client.Client) error {
			r, err := c.Get(t.Context(), "a")
			require.Equal(t, err == nil, r != nil)
			return err
		}},
		{"Networks", `{"networks":[],"skipped":[]}`, func(t *testing.T, c *client.Client) error {
			if _, skipped := c.Networks(t.Context()); len(skipped) > 0 {
				return skipped[0]
			}
			return nil
		}},
		{"Ready", `{"ready":true,"checks":[]}`, func(t *testing.T, c *client.Client) error { return c.Ready(t.Context()) }},
		{"CreateSandbox", `{"path":"/run/netns/a"}`, func(t *testing.T, c *client.Client) error {
			path, err := c.CreateSandbox(t.Context(), "a")
			require.Equal(t, err == nil, path != "")
			return err
		}},
		{"DestroySandbox", "", func(t *testing.T, c *client.Client) error { return c.DestroySandbox(t.Context(), "a") }},
		{"DestroySandboxAt", "", func(t *testing.T, c *client.Client) error { return c.DestroySandboxAt(t.Context(), "/run/netns/a") }},
	}
}

// TestAnswersThatAreNone: what does not say that it was done is never success.
func TestAnswersThatAreNone(t *testing.T) {
	for _, c := range calls() {
		t.Run(c.name, func(t *testing.T) {
			if c.good == "" {
				require.NoError(t, c.do(t, saying(t, body(204, "", ""))))
			} else {
				require.NoError(t, c.do(t, saying(t, body(200, ajson, c.good+"\n"))))
				require.Error(t, c.do(t, saying(t, body(204, "", ""))))
			}
			for _, text := range []string{
				"", " ", "{}", "null", "[]", "true", `"x"`, "{", "no", `{"error":null}`, `{"error":{}}`, `{"error":{"kind":"busy","message":"no"}}`,
				`{"id":"b","phase":"ready"}`, `{"id":"a"}`, `{"allocations":null}`, `{"allocations":[{}]}`, `{"allocations":[],"error":{}}`,
				`{"removed":[]}`, `{"removed":[],"kept":[],"error":{"kind":"busy","message":"no"}}`, `{"healthy":[],"broken":[]}`,
				`{"interfaceName":"eth0"}`, `{"address":"10.0.0.2"}`, `{"networks":[]}`, `{"networks":[{}],"skipped":[]}`, `{"networks":[],"skipped":[{"file":"x"}]}`,
				`{"ready":false,"checks":[]}`, `{"ready":true}`, `{"ready":true,"checks":[{"name":"x","ready":false}]}`,
				`{"path":""}`, `{"path":"/run/netns/b"}`, `{"path":"a"}`, c.good + "x", c.good + c.good, c.good[:max(0, len(c.good)-1)],
			} {
				require.Error(t, c.do(t, saying(t, body(200, ajson, text))), "%s: 200 %s", c.name, text)
			}
			for _, kind := range []string{"", "text/plain", "text/html; charset=utf-8", "application/json-seq"} {
				require.Error(t, c.do(t, saying(t, body(200, kind, c.good))), kind)
			}
			for _, status := range []int{201, 202, 206, 300, 302, 304, 400, 404, 500} {
				require.Error(t, c.do(t, saying(t, body(status, ajson, c.good))), status)
			}
			require.Error(t, c.do(t, saying(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", ajson)
				w.Header().Set("Content-Length", fmt.Sprint(len(c.good)+1))
				_, _ = io.WriteString(w, c.good)
			})), "cut short")
			for _, cause := range []string{"null", "{}", `{"kind":"busy"}`, `{"kind":"busy","message":"no","causes":[null]}`} {
				text := `{"error":{"kind":"busy","message":"no","causes":[` + cause + `]}}`
				require.Error(t, c.do(t, saying(t, body(500, ajson, text))), text)
			}
			err := c.do(t, saying(t, body(429, ajson, `{"error":{"kind":"busy","message":"full"}}`)))
			require.ErrorIs(t, err, client.ErrBusy)
		})
	}
}

// TestSetupOfANewOneThatWasThere: what an older daemon found is not new.
func TestSetupOfANewOneThatWasThere(t *testing.T) {
	c := saying(t, body(200, ajson, `{"interfaceName":"eth0","address":"","interfaces":[{"network":"n","name":"eth0"}]}`))
	_, err := c.Setup(t.Context(), allocnet.Allocation{ID: "a", Netns: "/run/netns/a", MustBeNew: true})
	require.ErrorContains(t, err, "that was there")
}

// TestEventsThatAreNone break the stream off.
func TestEventsThatAreNone(t *testing.T) {
	const event = `data: {"id":1,"time":"2026-01-01T00:00:00Z","type":"reload","data":{}}` + "\n\n"
	follow := func(status int, kind, text string) (n int, last error) {
		for _, err := range saying(t, body(status, kind, text)).Events(t.Context(), 0) {
			if last = err; err == nil {
				n++
			}
		}
		return n, last
	}
	n, err := follow(200, stream, ": allocnetd\n\n"+event+event[:len(event)/2])
	require.Equal(t, 1, n)
	require.ErrorIs(t, err, io.EOF, "the last one was cut off")
	for _, text := range []string{
		"null", "{}", "[]", "{", "x", `{"id":1,"time":"2026-01-01T00:00:00Z","type":"reload"}`, `{"id":1,"time":"2026-01-01T00:00:00Z","type":"reload","data":null}`,
		`{"time":"2026-01-01T00:00:00Z","type":"reload","data":{}}`, `{"id":1,"type":"reload","data":{}}`, `{"id":1,"time":"2026-01-01T00:00:00Z","data":{}}`,
		`{"id":1,"time":"2026-01-01T00:00:00Z","type":"reload","data":{}}x`, `{"id":1,"time":"2026-01-01T00:00:00Z","type":"reload","data":[]}`,
	} {
		n, err := follow(200, stream, event+"data: "+text+"\n\n")
		require.Equal(t, 1, n, text)
		require.ErrorContains(t, err, "decode event of allocnetd", text)
	}
	for _, kind := range []string{"", ajson, "text/plain"} {
		n, err := follow(200, kind, event)
		require.Zero(t, n)
		require.ErrorContains(t, err, "unexpected answer", kind)
	}
	for _, text := range []string{"", "{}", "null", `{"error":null}`, `{"error":{}}`} {
		_, err := follow(503, ajson, text)
		require.ErrorContains(t, err, "unexpected answer", text)
	}
	_, err = follow(429, ajson, `{"error":{"kind":"busy","message":"full"}}`)
	require.ErrorIs(t, err, client.ErrBusy)
}
