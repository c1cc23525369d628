package main

import (
	"errors"
	"io/fs"
	"net"
	"syscall"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
)

// service returns the daemon if it is running, and otherwise a Configurator of this
// process. A daemon that stops listening later is replaced by it, unless --socket names it.
func (a *app) service() (allocnet.Service, error) {
	daemon, err := a.daemon()
	if err != nil {
		return nil, err
	}
	switch {
	case daemon == nil:
		return a.configurator()
	case a.flags.set.Changed("socket"):
		return daemon, nil
	}
	return &failover{daemon: daemon, open: func() (allocnet.Service, error) { return a.configurator() }}, nil
}

// daemon returns a client of the daemon, or nil if this process executes the command: no
// daemon listens, or a flag requires it.
func (a *app) daemon() (*client.Client, error) {
	local, requested := a.flags.localFlag(), a.flags.set.Changed("socket")
	switch {
	case a.flags.noDaemon: // its last settings are used nevertheless
		return nil, nil
	case local != "" && requested:
		return nil, usagef("--socket and --%s: the daemon has its own settings; give only one of the flags", local)
	case local != "":
		return nil, nil
	}
	conn, err := net.Dial("unix", a.flags.socket)
	switch {
	case err == nil:
		_ = conn.Close()
	case !requested && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ECONNREFUSED)):
		return nil, nil
	}
	a.logger().Debug("using the daemon", "socket", a.flags.socket)
	return client.New(client.Config{Socket: a.flags.socket}), nil
}
