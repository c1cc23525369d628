package api

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/cmd/internal/dropin"
	"github.com/allocnet/allocnet/internal/wire"
)

// plugin serves a call of a drop-in plugin, see package dropin. Only root may send one,
// because it contains a network configuration.
func (a *API) plugin(w http.ResponseWriter, r *http.Request) {
	said, err := a.callPlugin(w, r)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	for _, line := range said.Stderr {
		w.Header().Add(dropin.HeaderStderr, line)
	}
	o := &answer{status: http.StatusNoContent, api: a}
	if len(said.Stdout) > 0 {
		w.Header().Set(dropin.HeaderExitStatus, strconv.Itoa(said.Exit))
		o.status, o.data = http.StatusOK, said.Stdout
	}
	a.write(w, r, o)
}

// callPlugin reads the call, enters the limiter and runs the plugin.
func (a *API) callPlugin(w http.ResponseWriter, r *http.Request) (*dropin.Answer, error) {
	if !byRoot(r) {
		w.Header().Set("Connection", "close") // the body is not read
		return nil, fmt.Errorf("%w: only root may run plugins", wire.ErrForbidden)
	}
	b, err := a.readBody(r, dropin.MaxConfig)
	if err != nil {
		w.Header().Set("Connection", "close")
		return nil, err
	}
	defer b.release()
	call := callOf(r, b.Bytes())
	timeout, limiter, key := a.limits.OperationTimeout, a.operations, call.Env.ContainerID
	switch call.Env.Command {
	case cni.GC:
		timeout = a.limits.SweepTimeout
	case cni.Status:
		timeout, limiter = a.limits.ReadTimeout, a.reads
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	ctx = withClient(ctx, r)
	defer keepAlive(cni.Keepalive, func() error { return a.processing(w) }, cancel).end()
	leave, err := limiter.enter(ctx, key)
	if err != nil {
		return nil, err
	}
	defer leave()
	return a.options.Plugin(ctx, call)
}

// processing tells the client that its request is not answered yet.
func (a *API) processing(w http.ResponseWriter) error {
	err := a.extend(w)
	w.WriteHeader(http.StatusProcessing)
	return err
}

// callOf returns the call in a request.
func callOf(r *http.Request, config []byte) dropin.Call {
	field := r.Header.Get
	return dropin.Call{
		Plugin: r.PathValue("plugin"), Host: field(dropin.HeaderHost), NetnsID: field(dropin.HeaderNetnsID), Config: config,
		Env: cni.Env{
			Command: field(dropin.HeaderCommand), ContainerID: field(dropin.HeaderContainerID), Netns: field(dropin.HeaderNetns),
			IfName: field(dropin.HeaderIfName), Args: field(dropin.HeaderArgs), Path: field(dropin.HeaderPath),
		},
	}
}
