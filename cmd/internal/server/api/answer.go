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

// retryAfter is what a client that finds the queue full is told, in seconds.
const retryAfter = "1"

// statusOf is the HTTP status of an answer.
func statusOf(value any, err error) int {
	switch {
	case err != nil:
		return wire.FromError(err).Status()
	case value == nil:
		return http.StatusNoContent
	}
	return http.StatusOK
}

// answer is one that is ready to be sent. release gives back its share of what there
// may be of all answers.
type answer struct {
	status int
	data   []byte // nil for none
	share  int64
	api    *API
}

func (o *answer) release() { o.api.answers.Release(o.share) }

const (
	small        = 64 << 10               // bytes of an answer that no account is taken of
	roomPatience = 250 * time.Millisecond // for the answers before to be taken in
)

// fits takes a share of what there may be of all answers, if it is left.
func (o *answer) fits() bool {
	return len(o.data) < small || o.took(o.api.answers.TryAcquire(o.size()))
}

// wait is fits for who has time; else it is ErrBusy.
func (o *answer) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, o.api.roomPatience)
	defer cancel()
	if o.fits() || o.took(o.api.answers.Acquire(ctx, o.size()) == nil) {
		return nil
	}
	return fmt.Errorf("%w: there is no room for the answer", wire.ErrBusy)
}

func (o *answer) took(ok bool) bool {
	if ok {
		o.share = o.size()
	}
	return ok
}

// size is what an answer counts, at most all that there may be.
func (o *answer) size() int64 { return min(int64(cap(o.data)), o.api.limits.AllAnswers) }

// encode makes an answer of a value; nil for none.
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

// fail answers with an error alone. One that repeats much of its request is told in
// short where there is no room for it.
func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := wire.FromError(err)
	o := a.encode(r, e.Status(), wire.Failure{Error: e})
	if !o.fits() {
		o = a.encode(r, e.Status(), wire.Failure{Error: &wire.Error{Kind: e.Kind, Message: strings.ToValidUTF8(e.Message[:min(len(e.Message), 1000)], "")}})
	}
	defer o.release()
	a.write(w, r, o)
}

// send answers with a value, whatever there is room for.
func (a *API) send(w http.ResponseWriter, r *http.Request, status int, value any) {
	a.write(w, r, a.encode(r, status, value))
}

// write answers in one piece. A client that does not take it in is cut off at the
// write deadline.
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

// extend gives the client time to take in what is written next.
func (a *API) extend(w http.ResponseWriter) error {
	if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(a.limits.WriteTimeout)); err != nil {
		return fmt.Errorf("set write deadline: %w", err)
	}
	return nil
}

// unsent notes that a client did not get its answer.
func (a *API) unsent(r *http.Request, err error) {
	if err != nil {
		a.logger.Debug("answer was not taken", "method", r.Method, "path", r.URL.Path, "error", err)
	}
}
