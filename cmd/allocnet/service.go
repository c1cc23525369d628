package main

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"path/filepath"
	"syscall"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/sandbox"
)

// service is who does what a command asks for: the daemon, or a Configurator of
// this process.
type service interface {
	Setup(context.Context, configurator.Allocation) (*configurator.Status, error)
	Check(context.Context, configurator.Allocation) error
	Teardown(context.Context, configurator.Allocation) error
	GC(context.Context, []string) (*configurator.GCReport, error)
	PlanGC(context.Context, configurator.Scope) (*configurator.GCReport, error)
	Repair(context.Context) (*configurator.RepairReport, error)
	Ready(context.Context) error
	List() ([]configurator.Record, error)
	Get(id string) (*configurator.Record, error)
	Networks() ([]configurator.Network, []*configurator.NetworkError)
}

// service asks the daemon where it is there, and works alone where it is not.
func (a *app) service() (service, error) {
	daemon, err := a.daemon()
	if err != nil {
		return nil, err
	}
	if daemon != nil {
		return daemon, nil
	}
	return a.configurator()
}

// daemon is a way to the daemon; nil where the command works alone: no daemon
// listens, or flags say how this process is to work.
func (a *app) daemon() (*client.Client, error) {
	alone, asked := a.flags.alone(), a.flags.set.Changed("socket")
	switch {
	case a.flags.noDaemon: // whose settings may count all the same
		return nil, nil
	case alone != "" && asked:
		return nil, usagef("--socket and --%s: the daemon has settings of its own; give either", alone)
	case alone != "":
		return nil, nil
	}
	conn, err := net.Dial("unix", a.flags.socket)
	switch {
	case err == nil:
		_ = conn.Close()
	case !asked && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ECONNREFUSED)):
		return nil, nil
	}
	a.logger().Debug("asking the daemon", "socket", a.flags.socket)
	return client.New(client.Config{Socket: a.flags.socket}), nil
}

// namespaces makes and destroys network namespaces with a name.
type namespaces interface {
	// ensure makes a namespace unless it is there. Where a path is not wanted in
	// particular, only its name matters.
	ensure(ctx context.Context, wanted string, exactly bool) (path string, created bool, err error)
	// destroy tells whether there was one.
	destroy(ctx context.Context, path string) (destroyed bool, err error)
}

// namespacesOf are those that go with who does the rest.
func namespacesOf(s service) namespaces {
	if daemon, ok := s.(*client.Client); ok {
		return daemonNamespaces{daemon}
	}
	return ownNamespaces{}
}

type ownNamespaces struct{}

func (ownNamespaces) ensure(_ context.Context, wanted string, _ bool) (string, bool, error) {
	if !isNamed(wanted) {
		return "", false, notCreatable(wanted, sandbox.DefaultDir)
	}
	ns, created, err := sandbox.Ensure(filepath.Base(wanted))
	if err != nil {
		return "", false, err
	}
	return ns.Path(), created, ns.Close()
}

func (ownNamespaces) destroy(_ context.Context, path string) (bool, error) {
	there := sandbox.Validate(path) == nil
	if err := sandbox.Destroy(path); err != nil {
		return false, err
	}
	return there, nil
}

// daemonNamespaces works for those who may use the daemon and nothing else.
type daemonNamespaces struct{ client *client.Client }

// ensure makes it in the daemon's directory.
func (d daemonNamespaces) ensure(ctx context.Context, wanted string, exactly bool) (string, bool, error) {
	path, err := d.client.CreateSandbox(ctx, filepath.Base(wanted))
	created := err == nil
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return "", false, err
	}
	if !exactly || path == wanted {
		return path, created, nil
	}
	err = notCreatable(wanted, filepath.Dir(path))
	if created {
		err = errors.Join(err, d.client.DestroySandboxAt(context.WithoutCancel(ctx), path))
	}
	return "", false, err
}

// destroy leaves to this process what is not in the daemon's directory.
func (d daemonNamespaces) destroy(ctx context.Context, path string) (bool, error) {
	there := sandbox.Validate(path) == nil
	err := d.client.DestroySandboxAt(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		return ownNamespaces{}.destroy(ctx, path)
	}
	return there && err == nil, err
}
