package dropin

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/internal/plugins/builtin"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// Answer is what a plugin binary leaves to the runtime.
type Answer struct {
	Stdout []byte
	Stderr []string // lines
	Exit   int
}

// Service runs native plugins in this process. It is safe for concurrent use.
type Service struct {
	log     hclog.Logger
	self    string
	plugins map[string]sdk.Factory

	mu   sync.Mutex
	host *sdk.Host // opened by the first call
}

// New returns a Service. It opens nothing yet.
func New(log hclog.Logger) *Service {
	return &Service{log: log, self: HostID(), plugins: builtin.DropIns}
}

// open returns the state that all calls share.
func (s *Service) open() (*sdk.Host, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.host != nil {
		return s.host, nil
	}
	host, err := sdk.OpenDropInHost(s.log)
	if err != nil {
		return nil, err
	}
	host.Cache, host.Hold = &sdk.TTLCache{}, sdk.NewGuardHold()
	s.host = host
	return host, nil
}

// Close closes the sockets. No call may be running; a later call opens them again.
func (s *Service) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.host == nil {
		return nil
	}
	host := s.host
	s.host = nil
	return host.Close()
}

// Serve runs the plugin of a call. An error of the plugin is an Answer. Any other error
// means that nothing was done, or that it was undone; wire.ErrNotServed means that the
// program allocnet-plugins can serve the call. If the context ends during an ADD, the
// ADD is undone.
func (s *Service) Serve(ctx context.Context, c Call) (*Answer, error) {
	if c.Host != s.self {
		return nil, notServed("the caller has other namespaces or another root directory")
	}
	if _, native := s.plugins[c.Plugin]; !native {
		return nil, notServed("there is no native plugin %q", c.Plugin)
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	netns, err := c.netns()
	if err != nil {
		return nil, err
	}
	if netns != nil {
		defer netns.Close()
	}
	shared, err := s.open()
	if err != nil {
		return nil, notServed("%w", err)
	}
	host, stderr, binary := *shared, &stderr{}, &noBinaries{}
	host.Log = loggers{sdk.Lines(c.Plugin, stderr), s.log.With("plugin", c.Plugin, "container", c.Env.ContainerID)}
	exec := &sdk.Exec{Plugins: s.plugins, Host: &host, Binary: binary, Lenient: true, Netns: c.Env.Netns, Open: netns}
	defer exec.Close()
	out, err := c.run(ctx, exec)
	switch {
	case err == nil && (c.Env.Command == cni.Add || !binary.asked.Load()):
		return &Answer{Stdout: out, Stderr: stderr.lines()}, nil
	case binary.asked.Load():
		return nil, notServed("%w", errBinary)
	case ctx.Err() != nil:
		return failure(types.NewError(cni.CodeTryAgainLater, err.Error(), ""), stderr)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return nil, notServed("%w", err)
	}
	return failure(sdk.AsReference(err), stderr)
}

// run runs the plugin. It undoes an ADD that succeeded although its caller had gone.
func (c *Call) run(ctx context.Context, exec *sdk.Exec) ([]byte, error) {
	out, err := exec.Answer(ctx, c.Plugin, c.Config, c.environ(c.Env.Command))
	if err != nil || c.Env.Command != cni.Add || ctx.Err() == nil {
		return out, err
	}
	undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	_, err = exec.Answer(undoing, c.Plugin, c.Config, c.environ(cni.Del))
	return nil, errors.Join(ctx.Err(), err)
}

// failure returns the answer for an error, as package skel prints it.
func failure(e *types.Error, stderr *stderr) (*Answer, error) {
	text, err := json.MarshalIndent(e, "", "    ")
	if err != nil {
		return nil, err
	}
	return &Answer{Stdout: text, Stderr: stderr.lines(), Exit: 1}, nil
}

// undoTime is the maximum time for undoing an ADD whose caller has gone.
const undoTime = 10 * time.Second

// errBinary: a plugin binary has to run, which needs the runtime's environment.
var errBinary = errors.New("a plugin binary has to run")

// noBinaries is a Runner that runs nothing.
type noBinaries struct{ asked atomic.Bool }

func (b *noBinaries) FindInPath(string, []string) (string, error) {
	b.asked.Store(true)
	return "", errBinary
}

func (b *noBinaries) ExecPlugin(context.Context, string, []byte, []string) ([]byte, error) {
	b.asked.Store(true)
	return nil, errBinary
}

// stderr collects what the plugin writes to stderr, up to a size.
type stderr struct {
	mu  sync.Mutex
	all strings.Builder
}

const maxStderr = 16 << 10

func (s *stderr) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all.Len()+len(p) <= maxStderr {
		s.all.Write(p)
	}
	return len(p), nil
}

func (s *stderr) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.FieldsFunc(s.all.String(), func(r rune) bool { return r == '\n' })
}

// loggers are a Logger that logs to both.
type loggers [2]sdk.Logger

func (l loggers) Warn(message string, pairs ...any) {
	for _, to := range l {
		to.Warn(message, pairs...)
	}
}

func (l loggers) Error(message string, pairs ...any) {
	for _, to := range l {
		to.Error(message, pairs...)
	}
}
