package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"slices"

	"github.com/allocnet/allocnet/cmd/internal/server/strict"
	"github.com/allocnet/allocnet/internal/wire"
)

const (
	portion = 64 << 10 // bytes of a body that are read at a time
	spare   = 16 << 20 // bytes that are read of a refused body
)

// body is the body of a request. It counts against the bound of all bodies until release
// is called.
type body struct {
	bytes.Buffer
	api *API
}

func (b *body) release() { b.api.bodies.Release(int64(b.Len())) }

// readBody reads the whole body of a request, whose read deadline is set. The received
// bytes count against the bound, not the announced length.
func (a *API) readBody(r *http.Request, most int64) (*body, error) {
	b := &body{api: a}
	err := checkHeader(r)
	switch {
	case err != nil:
	case r.ContentLength > most:
		err = tooLarge(most)
	default:
		err = b.fill(r.Body, most)
	}
	if err != nil {
		b.release()
		if r.ContentLength <= spare { // most clients send the whole body before they read the answer
			_, _ = io.CopyN(io.Discard, r.Body, spare)
		}
		return nil, err
	}
	return b, nil
}

// checkHeader refuses a request whose header asks for something that the API does not do.
func checkHeader(r *http.Request) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead { // those have no effect that depends on it
		for _, name := range []string{"If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"} {
			if r.Header.Get(name) != "" {
				return fmt.Errorf("%w: header %s: is not supported; send the revision of the record, in the field revision of the body or, to detach, of the query; or mustBeNew for a new allocation", wire.ErrMalformed, name)
			}
		}
	}
	if r.ContentLength == 0 {
		return nil
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return fmt.Errorf("%w: header Content-Encoding: %.64q is not supported", wire.ErrMediaType, encoding)
	}
	given := r.Header.Get("Content-Type")
	if kind, _, err := mime.ParseMediaType(given); given != "" && (err != nil || !slices.Contains(mediaTypes, kind)) {
		return fmt.Errorf("%w: header Content-Type: %.64q is not supported; the body must be application/json", wire.ErrMediaType, given)
	}
	return nil
}

// mediaTypes are the accepted types of a body. The second one is what curl -d sends if it is given none.
var mediaTypes = []string{"application/json", "application/x-www-form-urlencoded"}

// fill reads the body. It takes room for each portion, and returns wire.ErrBusy if
// there is not enough room. A body of more than most bytes is an error.
func (b *body) fill(from io.Reader, most int64) error {
	for {
		n, err := io.CopyN(&b.Buffer, from, min(portion, most+1-int64(b.Len())))
		if !b.api.bodies.TryAcquire(n) {
			b.Truncate(b.Len() - int(n))
			return fmt.Errorf("%w: the bodies of other requests leave no room for the body", wire.ErrBusy)
		}
		switch {
		case int64(b.Len()) > most:
			return tooLarge(most)
		case err == nil:
			continue
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("%w: the body did not arrive within %s", wire.ErrTooSlow, b.api.limits.BodyTimeout)
		}
		return fmt.Errorf("%w: read the body: %w", wire.ErrMalformed, err)
	}
}

func tooLarge(most int64) error {
	if most == 0 {
		return fmt.Errorf("%w: the request must have no body", wire.ErrMalformed)
	}
	return fmt.Errorf("%w: the body must have at most %d bytes", wire.ErrTooLarge, most)
}

// decode decodes the body into v, a pointer. If the body is optional, an empty one leaves
// v unchanged.
func (b *body) decode(v any, optional bool) error {
	if optional && b.Len() == 0 {
		return nil
	}
	if err := strict.Decode(b.Bytes(), v); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrMalformed, err)
	}
	return nil
}
