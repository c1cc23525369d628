package main

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"syscall"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
)

// service is who does what a command asks for: the daemon, or a Configurator of
// this process.
type service interface {
	Setup(context.Context, configurator.Allocation) (*configurator.Status, error)
	Check(context.Context, configurator.Allocation) error
	Teardown(context.Context, configurator.Allocation) error
	GCScope(context.Context, configurator.Scope) (*configurator.GCReport, error)
	PlanGC(context.Context, configurator.Scope) (*configurator.GCReport, error)
	RepairScope(context.Context, configurator.Scope) (*configurator.RepairReport, error)
	RecoverScope(context.Context, configurator.Scope) (removed []string, err error)
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
