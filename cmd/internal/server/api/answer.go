package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/allocnet/allocnet/internal/wire"
)

// retryAfter is the time in seconds after which a client should repeat a request that
// found the queue full.
const retryAfter = "1"

// statusOf returns the HTTP status of an answer.
func statusOf(value any, err error) int {
	switch {
	case err != nil:
		return wire.FromError(err).Status()
	case value == nil:
		return http.StatusNoContent
	}
	return http.StatusOK
}

// answer is an encoded answer. It counts against the bound of all answers until release
// is called.
type answer struct {
	status int
	data   []byte // nil for none
	share  int64
	api    *API
}

func (o *answer) release() { o.api.answers.Release(o.share) }

const (
	small       = 64 << 10               // bytes of an answer that does not count
	roomTimeout = 250 * time.Millisecond // longest wait for room
)

// fits takes room for the answer, if there is enough.
func (o *answer) fits() bool {
	return len(o.data) < small || o.took(o.api.answers.TryAcquire(o.size()))
}

// wait takes room for the answer. If there is none in time, the error is ErrBusy.
func (o *answer) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, o.api.roomTimeout)
	defer cancel()
	if o.fits() || o.took(o.api.answers.Acquire(ctx, o.size()) == nil) {
		return nil
	}
	return fmt.Errorf("%w: other answers leave no room for the answer", wire.ErrBusy)
}

func (o *answer) took(ok bool) bool {
	if ok {
		o.share = o.size()
	}
	return ok
}

// size returns the room that an answer needs, at most the whole bound.
func (o *answer) size() int64 { return min(int64(cap(o.data)), o.api.limits.AllAnswers) }

// encode encodes a value as an answer; nil stands for an answer without a body.
func (a *API) encode(r *http.Request, status int, value any) *answer {
	if value == nil {
		return &answer{status: status, api: a}
	}
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(value); err != nil {
		a.logger.Error("answer cannot be encoded", "method", r.Method, "path", r.URL.Path, "error", err)
		status = http.StatusInternalServerError
		b.WriteString(`{"error":{"kind":"internal","message":"answer cannot be encoded"}}` + "\n")
	}
	return &answer{status: status, data: b.Bytes(), api: a}
}

// fail answers with an error. If there is no room for a long error, its message is cut.
func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := wire.FromError(err)
	o := a.encode(r, e.Status(), wire.Failure{Error: e})
	if !o.fits() {
		o = a.encode(r, e.Status(), wire.Failure{Error: &wire.Error{Kind: e.Kind, Message: strings.ToValidUTF8(e.Message[:min(len(e.Message), 1000)], "")}})
	}
	defer o.release()
	a.write(w, r, o)
}

// send answers with a value, without taking room for it.
func (a *API) send(w http.ResponseWriter, r *http.Request, status int, value any) {
	a.write(w, r, a.encode(r, status, value))
}

// write sends an answer in one piece. If the client does not read it, the connection is
// closed at the write deadline.
func (a *API) write(w http.ResponseWriter, r *http.Request, o *answer) {
	if o.data != nil {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(o.data)))
	}
	if o.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", retryAfter)
	}
	err := a.extend(w)
	w.WriteHeader(o.status)
	if err == nil && o.data != nil {
		_, err = w.Write(o.data)
	}
	a.unsent(r, err)
}

// extend moves the write deadline before the next write.
func (a *API) extend(w http.ResponseWriter) error {
	if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(a.limits.WriteTimeout)); err != nil {
		return fmt.Errorf("set write deadline: %w", err)
	}
	return nil
}

// unsent logs that a client did not get its answer.
func (a *API) unsent(r *http.Request, err error) {
	if err != nil {
		a.logger.Debug("answer was not sent", "method", r.Method, "path", r.URL.Path, "error", err)
	}
}
