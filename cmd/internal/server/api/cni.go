package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/allocnet/allocnet/internal/cniwire"
	"github.com/allocnet/allocnet/internal/wire"
)

// cniBody is a cniwire.Request. Variables that this version does not know are ignored: the
// plugin is newer than the daemon when both are upgraded.
type cniBody struct {
	Env    map[string]string `json:"env"`
	Config json.RawMessage   `json:"config"`
}

// cni is the way in for the CNI plugin. While the operation waits or runs, a white
// space goes out at every heartbeat; what is done before the first one is answered
// in one piece. A refusal is an answer as well, with the code that a runtime knows.
func (a *API) cni(w http.ResponseWriter, r *http.Request) {
	b, err := a.readBody(r, cniwire.MaxRequest)
	if err != nil {
		w.Header().Set("Connection", "close")
		a.send(w, r, http.StatusOK, refusal(cniwire.Newest, err))
		return
	}
	defer b.release()
	var body cniBody
	if err := b.decode(&body, false); err != nil {
		_ = json.Unmarshal(b.Bytes(), &body) // the configuration may be readable all the same
		a.send(w, r, http.StatusOK, refusal(versionOf(body.Config), err))
		return
	}
	req := cniwire.Request{Env: cniwire.EnvOf(body.Env), Config: body.Config}
	req.Conflists, req.Root = a.mayBringConflists(r), byRoot(r)
	timeout := a.limits.OperationTimeout
	if req.Env.Command == cniwire.GC {
		timeout = a.limits.SweepTimeout
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	ctx = attend(ctx, r)
	life := a.showLife(w, cancel)
	response := a.runCNI(ctx, r, req)
	if !life.end() {
		a.send(w, r, http.StatusOK, response)
		return
	}
	a.unsent(r, a.pushResponse(w, response))
}

func (a *API) pushResponse(w http.ResponseWriter, response cniwire.Response) error {
	data, err := json.Marshal(response)
	if err != nil {
		return err
	}
	return a.push(w, append(data, '\n'))
}

// life keeps the plugin waiting with signs of life, which go out beside the operation.
type life struct {
	mu    sync.Mutex // of the answer, until the end
	timer *time.Timer
	begun bool // the answer, with the first sign
	ended bool
}

// showLife begins with the signs; end must be called. gone is called where nobody takes
// them in.
func (a *API) showLife(w http.ResponseWriter, gone func()) *life {
	l := &life{}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(cniwire.Heartbeat, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.ended {
			return
		}
		if !l.begun {
			w.Header().Set("Content-Type", "application/json")
		}
		l.begun = true
		if err := a.push(w, []byte("\n")); err != nil {
			gone()
			return
		}
		l.timer.Reset(cniwire.Heartbeat)
	})
	return l
}

// end reports whether the answer has begun. No sign goes out from then on.
func (l *life) end() (begun bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.timer.Stop()
	return l.begun
}

// runCNI passes the gate and works. STATUS and VERSION are reads.
func (a *API) runCNI(ctx context.Context, r *http.Request, req cniwire.Request) (response cniwire.Response) {
	defer func() {
		if p := recover(); p != nil {
			response = refusal(versionOf(req.Config), a.panicked(r, p))
		}
	}()
	gate, key := a.operations, req.Env.ContainerID
	if req.Env.Command == cniwire.Status || req.Env.Command == cniwire.Version {
		gate, key = a.reads, ""
	}
	leave, err := gate.enter(ctx, key)
	if err != nil {
		return refusal(versionOf(req.Config), err)
	}
	defer leave()
	response = a.options.CNI(ctx, req)
	switch {
	case response.Result != nil && !json.Valid(response.Result):
		return refusal(versionOf(req.Config), errors.New("the result is not JSON"))
	case req.Env.Command == cniwire.Add && response.Result == nil && response.Error == nil:
		return refusal(versionOf(req.Config), errors.New("there is no result"))
	}
	return response
}

// versionOf is the version in which to answer a configuration.
func versionOf(config json.RawMessage) string {
	var c struct {
		CNIVersion string `json:"cniVersion"`
	}
	if json.Unmarshal(config, &c) != nil {
		return cniwire.Newest
	}
	return cniwire.ReportVersion(c.CNIVersion)
}

// refusal is an error of the API's own for a runtime.
func refusal(version string, err error) cniwire.Response {
	e := &cniwire.Error{CNIVersion: version, Code: cniwire.CodeInternal, Msg: wire.FromError(err).Message}
	switch {
	case errors.Is(err, wire.ErrMalformed), errors.Is(err, wire.ErrTooLarge):
		e.Code = cniwire.CodeDecodingFailure
	case errors.Is(err, wire.ErrTooSlow):
		e.Code = cniwire.CodeIOFailure
	case errors.Is(err, wire.ErrBusy), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		e.Code = cniwire.CodeTryAgainLater
	}
	return cniwire.Response{Error: e}
}
