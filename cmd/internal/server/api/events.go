package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/allocnet/allocnet/internal/wire"
)

// events serves a stream of server-sent events until the client disconnects or the
// server shuts down.
func (a *API) events(w http.ResponseWriter, r *http.Request) {
	last, err := lastEvent(r)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	select {
	case a.streams <- struct{}{}:
		defer func() { <-a.streams }()
	default:
		a.fail(w, r, fmt.Errorf("%w: %d streams of events are open", wire.ErrBusy, cap(a.streams)))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	ended := make(chan struct{})
	defer close(ended)
	go a.hurry(w, ended)
	a.unsent(r, a.stream(w, r, last))
}

// lastWrite is the time for the last write of a stream when the server shuts down. A client that
// does not read delays the shutdown for that long.
const lastWrite = 500 * time.Millisecond

// hurry moves the write deadline of a stream when the server shuts down, unless the stream has
// ended.
func (a *API) hurry(w http.ResponseWriter, ended <-chan struct{}) {
	select {
	case <-ended:
	case <-a.stopped:
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(lastWrite)); err != nil {
			a.logger.Debug("the write deadline of a stream was not set", "error", err)
		}
	}
}

// lastEvent returns the ID after which events are requested, 0 for none.
func lastEvent(r *http.Request) (uint64, error) {
	text := r.Header.Get("Last-Event-ID")
	if after := r.URL.Query().Get("after"); after != "" {
		text = after
	}
	if text == "" {
		return 0, nil
	}
	last, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %q is not the ID of an event", wire.ErrMalformed, text)
	}
	return last, nil
}

// stream sends events and keepalives until the events end or the server shuts down.
func (a *API) stream(w http.ResponseWriter, r *http.Request, last uint64) error {
	events := a.options.Events(r.Context(), last)
	if err := a.push(w, []byte(": allocnetd\n\n")); err != nil {
		return err
	}
	keepalive := time.NewTicker(a.limits.Keepalive)
	defer keepalive.Stop()
	for {
		var err error
		select {
		case <-a.stopped:
			return nil
		case <-keepalive.C:
			err = a.push(w, []byte(":\n\n"))
		case e, more := <-events:
			if !more {
				return nil
			}
			err = a.pushEvent(w, e)
		}
		if err != nil {
			return err
		}
	}
}

// pushEvent sends one event. An event that cannot be encoded is logged and skipped.
func (a *API) pushEvent(w http.ResponseWriter, e wire.Event) error {
	data, err := json.Marshal(e)
	if err != nil {
		a.logger.Error("event cannot be encoded", "type", e.Type, "error", err)
		return nil
	}
	var b bytes.Buffer
	if e.ID != 0 {
		fmt.Fprintf(&b, "id: %d\n", e.ID)
	}
	fmt.Fprintf(&b, "event: %s\ndata: %s\n\n", e.Type, data)
	return a.push(w, b.Bytes())
}

// push writes a part of a stream and flushes it, unless the server shuts down.
func (a *API) push(w http.ResponseWriter, data []byte) error {
	if err := a.extend(w); err != nil {
		return err
	}
	select {
	case <-a.stopped: // extend may have undone what hurry did
		return nil
	default:
	}
	if _, err := w.Write(data); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}
