package main

import (
	"errors"
	"io/fs"
	"net"
	"syscall"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
)

// service asks the daemon where it is there, and works alone where it is not.
func (a *app) service() (allocnet.Service, error) {
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
