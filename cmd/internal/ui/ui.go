package ui

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/singleflight"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/connlimit"
	"github.com/allocnet/allocnet/cmd/internal/doctor"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/wire"
)

// Options are the options of Listen. Events and Metrics are nil without a daemon.
type Options struct {
	// Address is the loopback address to listen on, for example 127.0.0.1:9654: the page is
	// not encrypted. Port 0 stands for any free one.
	Address string
	Service func() allocnet.Service
	// Networks are the networks of the Service with their configurations.
	Networks func() ([]*conflist.Network, []*conflist.FileError)
	// Status returns the overview of the host. Calls do not overlap.
	Status func(context.Context) (*client.HostStatus, error)
	// Doctor examines the host. Calls do not overlap.
	Doctor func(context.Context) (*doctor.Report, error)
	// Events returns the events after the one with the ID last; for 0, new events only.
	// The channel is closed when the context or the events end.
	Events func(ctx context.Context, last uint64) <-chan wire.Event
	// Metrics returns the metrics of the daemon.
	Metrics func(context.Context) ([]*dto.MetricFamily, error)
	// Logger logs faults of connections; default none.
	Logger hclog.Logger
}

const (
	// maxConnections bounds the open connections: see connlimit.
	maxConnections = 64
	maxHeader      = 16 << 10

	headerTimeout = 5 * time.Second
	idleTimeout   = 2 * time.Minute
	// answerTimeout bounds one answer, and each part of the stream of events. So a client
	// that reads nothing keeps no connection.
	answerTimeout = time.Minute
	// keepalive is the time after which a stream without events sends an empty line.
	keepalive = 15 * time.Second
)

// Server serves the page. It must be run once, or closed.
type Server struct {
	options  Options
	listener net.Listener
	server   *http.Server
	token    string
	shared   singleflight.Group
}

//go:embed page
var files embed.FS

// Listen listens on the address and makes a token. The caller must call Run or Close.
func Listen(o Options) (*Server, error) {
	if _, err := settings.LoopbackAddress(o.Address); err != nil {
		return nil, fmt.Errorf("listen for the page: %q %w", o.Address, err)
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	listener, err := net.Listen("tcp", o.Address)
	if err != nil {
		return nil, fmt.Errorf("listen for the page: %w", err)
	}
	s := &Server{options: o, listener: listener, token: newToken()}
	s.server = &http.Server{
		Handler:                      s.handler(),
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: answerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: o.Logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	return s, nil
}

// URL returns the URL of the page with the token.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() + "/#token=" + s.token }

// Run serves until the context ends. The error is nil then.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.server.Close() })
	defer stop()
	err := s.server.Serve(connlimit.New(s.listener, s.server, maxConnections))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return errors.Join(fmt.Errorf("serve the page: %w", err), s.Close())
}

// Close stops listening, if Run was not called.
func (s *Server) Close() error {
	if err := s.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close the listener for the page: %w", err)
	}
	return nil
}

// hosts returns the values of the header Host that are served.
func (s *Server) hosts() []string {
	address := s.listener.Addr().String()
	_, port, _ := net.SplitHostPort(address)
	return []string{address, "localhost:" + port}
}

func (s *Server) handler() http.Handler {
	page, _ := fs.Sub(files, "page") // the directory is embedded
	api := http.NewServeMux()
	api.Handle("/api/state", s.answer(s.state))
	api.Handle("/api/status", s.answer(s.alone("status", s.status)))
	api.Handle("/api/doctor", s.answer(s.alone("doctor", func(ctx context.Context) (any, error) { return s.options.Doctor(ctx) })))
	api.Handle("/api/leases", s.answer(s.leases))
	api.Handle("/api/latencies", s.answer(s.latencies))
	api.Handle("/api/history", s.answer(s.history))
	api.HandleFunc("/api/events", s.events)
	mux := http.NewServeMux()
	mux.Handle("/api/", authorized(s.token, api))
	mux.Handle("/", http.FileServerFS(page))
	return guard(s.hosts(), mux)
}

// read returns what an answer contains.
type read func(r *http.Request) (any, error)

// answer serves what a function reads, as JSON.
func (s *Server) answer(read read) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, err := read(r)
		if err == nil {
			var data []byte
			if data, err = json.Marshal(content); err == nil {
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write(data)
				return
			}
		}
		status := http.StatusBadGateway
		if errors.Is(err, errQuery) {
			status = http.StatusBadRequest
		}
		fail(w, status, redact.Bound(redact.Text(err.Error())))
	})
}

// alone makes concurrent requests share one call, which does not end with any of them.
func (s *Server) alone(name string, do func(context.Context) (any, error)) read {
	return func(r *http.Request) (any, error) {
		shared := s.shared.DoChan(name, func() (any, error) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), answerTimeout)
			defer cancel()
			return do(ctx)
		})
		select {
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case result := <-shared:
			return result.Val, result.Err
		}
	}
}

// fail answers with an error.
func fail(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": text})
}

// hostname returns the name of the host, or "".
func hostname() string {
	name, _ := os.Hostname()
	return name
}
