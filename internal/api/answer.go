package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/allocnet/allocnet/internal/api/wire"
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

// fail answers with an error alone.
func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := wire.FromError(err)
	a.send(w, r, e.Status(), wire.Failure{Error: e})
}

// send answers in one piece. A client that does not take it in is cut off at the
// write deadline.
func (a *API) send(w http.ResponseWriter, r *http.Request, status int, value any) {
	var data []byte
	if value != nil {
		var err error
		if data, err = json.Marshal(value); err != nil {
			a.logger.Error("answer cannot be encoded", "method", r.Method, "path", r.URL.Path, "error", err)
			status, data = http.StatusInternalServerError, []byte(`{"error":{"kind":"internal","message":"answer cannot be encoded"}}`)
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(data)+1))
		data = append(data, '\n')
	}
	if status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", retryAfter)
	}
	err := a.extend(w)
	w.WriteHeader(status)
	if err == nil && len(data) > 0 {
		_, err = w.Write(data)
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
