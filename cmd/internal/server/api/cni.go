package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/internal/wire"
)

// cniBody is the body of a cni.Request. Unknown variables are ignored, because the plugin
// may be newer than the daemon during an upgrade.
type cniBody struct {
	Env    map[string]string `json:"env"`
	Config json.RawMessage   `json:"config"`
}

// cni serves the CNI plugin. While the operation waits or runs, it sends a line feed every
// cni.Keepalive; an operation that ends before the first one is answered in one piece. A
// refusal is an answer with a CNI error code.
func (a *API) cni(w http.ResponseWriter, r *http.Request) {
	b, err := a.readBody(r, cni.MaxRequest)
	if err != nil {
		w.Header().Set("Connection", "close")
		a.send(w, r, http.StatusOK, refusal(cni.Newest, err))
		return
	}
	defer b.release()
	var body cniBody
	if err := b.decode(&body, false); err != nil {
		_ = json.Unmarshal(b.Bytes(), &body) // the version may be readable nevertheless
		a.send(w, r, http.StatusOK, refusal(versionOf(body.Config), err))
		return
	}
	req := cni.Request{Env: cni.EnvOf(body.Env), Config: body.Config}
	req.Conflists, req.Root = a.maySendConflists(r), byRoot(r)
	timeout := a.limits.OperationTimeout
	if req.Env.Command == cni.GC {
		timeout = a.limits.SweepTimeout
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	ctx = withClient(ctx, r)
	keepalives := keepAlive(cni.Keepalive, func() error { return a.lineFeed(w) }, cancel)
	response := a.runCNI(ctx, r, req)
	if !keepalives.end() {
		a.send(w, r, http.StatusOK, response)
		return
	}
	a.unsent(r, a.pushResponse(w, response))
}

func (a *API) pushResponse(w http.ResponseWriter, response cni.Response) error {
	data, err := json.Marshal(response)
	if err != nil {
		return err
	}
	return a.push(w, append(data, '\n'))
}

// lineFeed sends a keepalive, which may be the beginning of the answer.
func (a *API) lineFeed(w http.ResponseWriter) error {
	w.Header().Set("Content-Type", "application/json") // has an effect only at the beginning
	return a.push(w, []byte("\n"))
}

// keepalive tells the plugin that the operation is still running.
type keepalive struct {
	mu    sync.Mutex // guards writing to the answer until the end
	timer *time.Timer
	begun bool // send was called
	ended bool
}

// keepAlive calls send at an interval, first after the interval; end must be called.
// If send fails, it calls gone and stops.
func keepAlive(interval time.Duration, send func() error, gone func()) *keepalive {
	k := &keepalive{}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer = time.AfterFunc(interval, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.ended {
			return
		}
		k.begun = true
		if err := send(); err != nil {
			gone()
			return
		}
		k.timer.Reset(interval)
	})
	return k
}

// end stops the keepalive and reports whether send was called.
func (k *keepalive) end() (begun bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = true
	k.timer.Stop()
	return k.begun
}

// runCNI enters the limiter and serves the request. STATUS and VERSION are reads.
func (a *API) runCNI(ctx context.Context, r *http.Request, req cni.Request) (response cni.Response) {
	defer func() {
		if p := recover(); p != nil {
			response = refusal(versionOf(req.Config), a.panicked(r, p))
		}
	}()
	limiter, key := a.operations, req.Env.ContainerID
	if req.Env.Command == cni.Status || req.Env.Command == cni.Version {
		limiter, key = a.reads, ""
	}
	leave, err := limiter.enter(ctx, key)
	if err != nil {
		return refusal(versionOf(req.Config), err)
	}
	defer leave()
	response = a.options.CNI(ctx, req)
	switch {
	case response.Result != nil && !json.Valid(response.Result):
		return refusal(versionOf(req.Config), errors.New("the result is not JSON"))
	case req.Env.Command == cni.Add && response.Result == nil && response.Error == nil:
		return refusal(versionOf(req.Config), errors.New("there is no result"))
	}
	return response
}

// versionOf returns the CNI version in which a configuration is answered.
func versionOf(config json.RawMessage) string {
	var c struct {
		CNIVersion string `json:"cniVersion"`
	}
	if json.Unmarshal(config, &c) != nil {
		return cni.Newest
	}
	return cni.ReportVersion(c.CNIVersion)
}

// refusal returns the response for an error of the API itself.
func refusal(version string, err error) cni.Response {
	e := &cni.Error{CNIVersion: version, Code: cni.CodeInternal, Msg: wire.FromError(err).Message}
	switch {
	case errors.Is(err, wire.ErrMalformed), errors.Is(err, wire.ErrTooLarge):
		e.Code = cni.CodeDecodingFailure
	case errors.Is(err, wire.ErrTooSlow):
		e.Code = cni.CodeIOFailure
	case errors.Is(err, wire.ErrBusy), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		e.Code = cni.CodeTryAgainLater
	}
	return cni.Response{Error: e}
}
