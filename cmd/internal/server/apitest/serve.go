package apitest

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/routers"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/cmd/internal/dropin"
	"github.com/allocnet/allocnet/cmd/internal/server/api"
	"github.com/allocnet/allocnet/internal/wire"
)

// Serve serves an API on a Unix socket until the test ends. It returns the path of the
// socket and the server. Missing Options are taken from Defaults.
func Serve(t *testing.T, o api.Options) (socket string, server *http.Server) {
	t.Helper()
	d := Defaults()
	if o.Service == nil {
		o.Service = d.Service
	}
	if o.Sandboxes == nil {
		o.Sandboxes = d.Sandboxes
	}
	if o.Ready == nil {
		o.Ready = d.Ready
	}
	if o.Traffic == nil {
		o.Traffic = d.Traffic
	}
	if o.Denials == nil {
		o.Denials = d.Denials
	}
	if o.Status == nil {
		o.Status = d.Status
	}
	if o.CNI == nil {
		o.CNI = d.CNI
	}
	if o.Plugin == nil {
		o.Plugin = d.Plugin
	}
	if o.Events == nil {
		o.Events = d.Events
	}
	if o.Metrics == nil {
		o.Metrics = d.Metrics
	}
	if o.Groups == nil && os.Geteuid() != 0 { // the user who runs the test may use the API
		o.Groups = []uint32{uint32(os.Getegid())}
	}
	o.Logger = hclog.New(&hclog.LoggerOptions{Output: logWriter{t}, Level: hclog.Debug})
	socket = filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	router, err := router()
	require.NoError(t, err)
	served := api.New(o)
	server = served.Server()
	var handlers sync.WaitGroup
	next := &Validator{Next: server.Handler, Router: router, Report: func(err error) { assert.NoError(t, err) }}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handlers.Add(1)
		defer handlers.Done()
		next.ServeHTTP(w, r)
	})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(served.Listener(listener)) }()
	t.Cleanup(func() {
		_ = server.Close()
		require.ErrorIs(t, <-ended, http.ErrServerClosed)
		handlers.Wait() // they report to t
	})
	return socket, server
}

// router returns the router of the description, which it reads once.
var router = sync.OnceValues(func() (routers.Router, error) { return newRouter(api.Description()) })

// Defaults returns Options with a Memory and without events.
func Defaults() api.Options {
	memory := &Memory{}
	return api.Options{
		Service:   func() allocnet.Service { return memory },
		Sandboxes: noSandboxes{},
		Ready:     func(context.Context) []api.Check { return []api.Check{{Name: "status", Network: Net}} },
		Status: func(context.Context) *client.HostStatus {
			return &client.HostStatus{
				Daemon: &client.DaemonStatus{Version: "v1", PID: 1, Started: time.Now()}, Engine: allocnet.EngineAuto,
				Networks: []client.NetworkStatus{}, Skipped: []string{}, Drift: []client.Drift{},
				Errors: []client.RecentError{}, Problems: []string{}, Versions: client.Versions{Kernel: "6.1"},
				Doctor: &client.DoctorSummary{Warnings: 1, Findings: []client.DoctorFinding{{ID: "rp-filter", Severity: "warning", Object: "eth0", What: "strict"}}},
			}
		},
		Traffic: func(context.Context) *client.HostTraffic {
			connections := 3
			return &client.HostTraffic{
				Time:        time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
				Allocations: []client.AllocationTraffic{{ID: "a", Interfaces: []client.InterfaceTraffic{}, Connections: &connections}},
				Problems:    []string{},
			}
		},
		Denials: func(context.Context) *client.HostDenials {
			return &client.HostDenials{
				Time: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Problems: []string{},
				Flows: []client.DeniedFlow{{ID: "a", Direction: "egress", Address: "10.1.0.2", Peer: "10.1.0.3", PeerID: "b", Protocol: "tcp", Port: 80, Rule: "default", Packets: 2, Bytes: 120}},
			}
		},
		CNI: func(context.Context, cni.Request) cni.Response {
			return cni.Response{Result: []byte(`{"cniVersion":"1.1.0"}`)}
		},
		Plugin: func(context.Context, dropin.Call) (*dropin.Answer, error) { return nil, wire.ErrNotServed },
		Events: func(ctx context.Context, _ uint64) <-chan wire.Event {
			events := make(chan wire.Event)
			context.AfterFunc(ctx, func() { close(events) })
			return events
		},
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
			_, _ = io.WriteString(w, "# nothing\n")
		}),
	}
}

type noSandboxes struct{}

func (noSandboxes) Create(_ context.Context, name string) (string, error) {
	return "/run/netns/" + name, nil
}
func (noSandboxes) Destroy(string) error    { return nil }
func (noSandboxes) Path(name string) string { return "/run/netns/" + name }

// logWriter writes the log to the output of the test.
type logWriter struct{ t *testing.T }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}
