package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/allocnet/allocnet/cmd/internal/server"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
)

// tcpServer listens on a TCP port. Its Run serves until the context ends. Close may be called at any time, and again.
type tcpServer interface {
	Run(context.Context) error
	Close() error
}

// optional is a server that the daemon can do without. Any user of the host may have its port: then the
// daemon runs, tries again, and says so in the log and in the overview of the host.
type optional struct {
	task    string
	setting string // that has the address
	listen  func() (tcpServer, error)
	source  settings.Source
	logger  hclog.Logger

	mu      sync.Mutex
	server  tcpServer // nil while there is none
	problem error     // why there is none
}

// The time between two attempts to listen.
const (
	firstListenPause = time.Second
	lastListenPause  = time.Minute
)

// try listens, unless the server does already, and reports whether it does.
func (o *optional) try() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.server != nil {
		return true
	}
	s, err := o.listen()
	if err != nil {
		o.failed(err)
		return false
	}
	o.server, o.problem = s, nil
	return true
}

// failed notes why there is no server. The caller holds the lock.
func (o *optional) failed(err error) {
	err = o.source.Problem(o.setting, err)
	if o.problem == nil || o.problem.Error() != err.Error() {
		o.logger.Error("not served; trying again", "error", err)
	}
	o.problem = err
}

// run serves until the context ends.
func (o *optional) run(ctx context.Context) error {
	pause := firstListenPause
	for {
		if o.try() {
			err := o.server.Run(ctx)
			if err == nil {
				return nil
			}
			o.mu.Lock()
			o.failed(errors.Join(err, o.server.Close()))
			o.server = nil
			o.mu.Unlock()
			pause = firstListenPause
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, lastListenPause)
	}
}

// fault returns why there is no server, or nil.
func (o *optional) fault() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.problem
}

func (o *optional) close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.server == nil {
		return nil
	}
	return o.server.Close()
}

// addOptional adds a server to the tasks of the daemon, and tries to listen.
func (h *host) addOptional(task, setting string, listen func() (tcpServer, error)) {
	o := &optional{task: task, setting: setting, listen: listen, source: h.source, logger: h.logger}
	o.try()
	h.optional = append(h.optional, o)
}

// listeners returns the settings of the servers, and whether there is no server.
func (h *host) listeners() map[string]bool {
	list := map[string]bool{}
	for _, o := range h.optional {
		list[o.setting] = o.fault() != nil
	}
	return list
}

// optionalTasks returns the tasks of the servers.
func (h *host) optionalTasks() (tasks []server.Task) {
	for _, o := range h.optional {
		tasks = append(tasks, server.Task{Name: o.task, Run: o.run})
	}
	return tasks
}
