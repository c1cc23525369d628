package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/allocnet/allocnet/cmd/internal/server/strict"
	"github.com/allocnet/allocnet/internal/wire"
)

const (
	portion = 64 << 10 // of a body that is read at a time
	spare   = 16 << 20 // that is read of a body that nobody wants
)

// body is that of a request. release gives back its share of what there may be of
// all bodies, and must be called when nothing of it is needed any more.
type body struct {
	bytes.Buffer
	api *API
}

func (b *body) release() { b.api.bodies.Release(int64(b.Len())) }

// readBody reads the whole body of a request, whose read deadline is set; it ends
// with the body. Only what has come counts, not what the client announces.
func (a *API) readBody(r *http.Request, most int64) (*body, error) {
	b := &body{api: a}
	err := tooLarge(most)
	if r.ContentLength <= most {
		err = b.fill(r.Body, most)
	}
	if err != nil {
		b.release()
		// Most clients send all before they look for an answer.
		_, _ = io.CopyN(io.Discard, r.Body, spare)
		return nil, err
	}
	return b, nil
}

func (b *body) fill(from io.Reader, most int64) error {
	for {
		n, err := io.CopyN(&b.Buffer, from, min(portion, most+1-int64(b.Len())))
		if !b.api.bodies.TryAcquire(n) {
			b.Truncate(b.Len() - int(n))
			return fmt.Errorf("%w: there is no room for the body", wire.ErrBusy)
		}
		switch {
		case int64(b.Len()) > most:
			return tooLarge(most)
		case err == nil:
			continue
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("%w: the body was not there in %s", wire.ErrTooSlow, b.api.limits.BodyTimeout)
		}
		return fmt.Errorf("%w: read the body: %w", wire.ErrMalformed, err)
	}
}

func tooLarge(most int64) error {
	if most == 0 {
		return fmt.Errorf("%w: there must be no body", wire.ErrMalformed)
	}
	return fmt.Errorf("%w: a body has at most %d bytes", wire.ErrTooLarge, most)
}

// decode reads the body into v, a pointer. An empty body leaves v as it is if it
// is optional.
func (b *body) decode(v any, optional bool) error {
	if optional && b.Len() == 0 {
		return nil
	}
	if err := strict.Decode(b.Bytes(), v); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrMalformed, err)
	}
	return nil
}
