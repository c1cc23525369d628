package ui

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/allocnet/allocnet/internal/wire"
)

// opened is the type of the first line of a stream. What has ended after its time follows
// as events.
const opened = "opened"

// events serves events, each one as a line of JSON, until the client disconnects or the
// events end. The query after is the ID of the last known event.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	if s.options.Events == nil {
		fail(w, http.StatusNotFound, "only the daemon has events, and it does not run")
		return
	}
	var last uint64
	if text := r.URL.Query().Get("after"); text != "" {
		var err error
		if last, err = strconv.ParseUint(text, 10, 64); err != nil {
			fail(w, http.StatusBadRequest, "after must be the ID of an event")
			return
		}
	}
	w.Header().Set("Content-Type", "application/jsonl")
	stream := lines{w, http.NewResponseController(w)}
	if r.Method == http.MethodHead {
		return
	}
	events, ticker := s.options.Events(r.Context(), last), time.NewTicker(keepalive)
	defer ticker.Stop()
	if stream.sendEvent(wire.Event{Time: time.Now(), Type: opened}) != nil {
		return
	}
	for {
		var err error
		select {
		case <-r.Context().Done():
			return
		case <-ticker.C:
			err = stream.send(nil)
		case e, more := <-events:
			if !more {
				return
			}
			err = stream.sendEvent(e)
		}
		if err != nil {
			return
		}
	}
}

// lines sends lines at once.
type lines struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func (l lines) sendEvent(e wire.Event) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return l.send(line)
}

func (l lines) send(line []byte) error {
	if err := l.control.SetWriteDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	if _, err := l.w.Write(append(line, '\n')); err != nil {
		return err
	}
	return l.control.Flush()
}
