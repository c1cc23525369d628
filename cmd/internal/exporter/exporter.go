// Package exporter serves metrics and probes over TCP, for Prometheus and for load
// balancers. The API of the daemon is not reachable through it.
package exporter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/exporter-toolkit/web"
	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/cmd/internal/connlimit"
	"github.com/allocnet/allocnet/internal/netlink/sockdiag"
)

// Options are the options of Listen.
type Options struct {
	// Address is ADDRESS:PORT, or :PORT for all addresses of the host.
	Address string
	// WebConfig is the path of a file in the format of exporter-toolkit (TLS, client
	// certificates, users), which is read again for each connection and each request; ""
	// for plain HTTP.
	WebConfig string
	// Metrics serves /metrics.
	Metrics http.Handler
	// Ready returns why the daemon is not ready, or nil. Calls do not overlap, and there is
	// at most one per second.
	Ready func(context.Context) error
	// Logger logs refused connections and faults of WebConfig; default none.
	Logger hclog.Logger
}

const (
	// maxConnections bounds the open connections: see connlimit.
	maxConnections = 64
	maxHeader      = 16 << 10

	headerTimeout = 5 * time.Second // for the header of a request, and for the TLS handshake
	readTimeout   = 10 * time.Second
	writeTimeout  = 30 * time.Second
	idleTimeout   = 2 * time.Minute // a scrape per minute needs one connection

	// readyTimeout bounds one call of Ready, and readyTime is the time for which its
	// result is reused.
	readyTimeout = 20 * time.Second
	readyTime    = time.Second
)

// Exporter serves GET and HEAD of /metrics, /healthz and /readyz. It must be run once.
type Exporter struct {
	options  Options
	listener net.Listener
	server   *http.Server

	readiness singleflight.Group
	mu        sync.Mutex
	asked     time.Time
	notReady  error
}

// Validate returns an error if a file of the web configuration, or a file that it names,
// cannot be read or is invalid.
func Validate(webConfig string) error {
	if err := web.Validate(webConfig); err != nil {
		return fmt.Errorf("%q: %w", webConfig, err)
	}
	return nil
}

// Listen listens on the address. The caller must call Run or Close. errors.Is finds
// unix.EADDRINUSE.
func Listen(o Options) (*Exporter, error) {
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	listener, err := net.Listen("tcp", o.Address)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics: %w%s", err, holder(o.Address, err))
	}
	e := &Exporter{options: o, listener: listener}
	// One request at a time per connection: so the connections bound the requests.
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	e.server = &http.Server{
		Handler: e.mux(), Protocols: protocols, DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader,
		ErrorLog:       o.Logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	return e, nil
}

// holder describes the process that keeps the address from being listened on.
func holder(address string, err error) string {
	_, text, _ := net.SplitHostPort(address)
	port, numeric := strconv.ParseUint(text, 10, 16)
	if !errors.Is(err, unix.EADDRINUSE) || numeric != nil {
		return ""
	}
	found, _ := sockdiag.Look(sockdiag.Ports{Protocol: unix.IPPROTO_TCP, Numbers: []uint16{uint16(port)}})
	for _, l := range found {
		if p, known := sockdiag.Processes(l.Inode)[l.Inode]; known {
			return fmt.Sprintf(" by %s (process %d), which listens on %s: choose another port, or end it", p.Name, p.PID, l.Address)
		}
	}
	return ""
}

// Addr returns the address on which the Exporter listens.
func (e *Exporter) Addr() net.Addr { return e.listener.Addr() }

func (e *Exporter) mux() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", e.options.Metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", e.readyz)
	return mux
}

// Run serves until the context ends. The error is nil then.
func (e *Exporter) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = e.server.Close() })
	defer stop()
	warnings := e.options.Logger.StandardWriter(&hclog.StandardLoggerOptions{ForceLevel: hclog.Warn})
	logger := slog.New(slog.NewTextHandler(warnings, &slog.HandlerOptions{Level: slog.LevelWarn}))
	flags := &web.FlagConfig{WebConfigFile: &e.options.WebConfig}
	err := web.Serve(connlimit.New(e.listener, e.server, maxConnections), e.server, flags, logger)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return errors.Join(fmt.Errorf("serve metrics: %w", err), e.Close())
}

// Close stops listening, if Run was not called.
func (e *Exporter) Close() error {
	if err := e.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close the listener for metrics: %w", err)
	}
	return nil
}

// readyz does not answer with the reason, which may name files and networks: any process
// that reaches the address can read it.
func (e *Exporter) readyz(w http.ResponseWriter, r *http.Request) {
	result := e.readiness.DoChan("", func() (any, error) { return nil, e.ready() })
	select {
	case <-r.Context().Done():
	case got := <-result:
		if got.Err != nil {
			answer(w, http.StatusServiceUnavailable, "not ready; `allocnet ready` on the host prints the reason")
			return
		}
		answer(w, http.StatusOK, "ready")
	}
}

// ready returns a recent result, or a new one.
func (e *Exporter) ready() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if time.Since(e.asked) < readyTime {
		return e.notReady
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	e.notReady = e.options.Ready(ctx)
	e.asked = time.Now()
	return e.notReady
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = fmt.Fprintln(w, text)
}
