package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"

	"github.com/allocnet/allocnet/internal/wire"
)

// Events returns an iterator over the events of the daemon. It begins with the event after the
// ID last, as far as the daemon still has it; with last 0, it begins with the next event. The
// iterator ends without an error when the context or the loop ends. If the connection fails,
// its last pair has the error: io.EOF if the daemon has stopped.
func (c *Client) Events(ctx context.Context, last uint64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if err := c.follow(ctx, last, func(e Event) bool { return yield(e, nil) }); err != nil && ctx.Err() == nil {
			yield(Event{}, err)
		}
	}
}

// follow calls yield for each event of the stream until yield returns false or the
// stream ends. It returns io.EOF if the daemon has closed the stream.
func (c *Client) follow(ctx context.Context, last uint64, yield func(Event) bool) error {
	answer, err := c.open(ctx, "GET", fmt.Sprintf("/v1/events?after=%d", last), nil)
	if err != nil {
		return err
	}
	defer answer.body.Close()
	if err := c.verifyStream(answer); err != nil {
		return err
	}
	lines := bufio.NewScanner(answer.body)
	lines.Buffer(nil, maxEvent)
	lines.Split(wholeLines)
	for lines.Scan() {
		data, isData := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !isData {
			continue
		}
		e, err := decodeEvent(data)
		if err != nil {
			return fmt.Errorf("decode event of allocnetd at %s: %w", c.cfg.Socket, err)
		}
		if !yield(e) {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return c.transportError(err)
	}
	return io.EOF
}

// maxEvent bounds one event, in bytes.
const maxEvent = 16 << 20

// wholeLines is bufio.ScanLines that drops an incomplete last line.
func wholeLines(data []byte, _ bool) (advance int, line []byte, err error) {
	end := bytes.IndexByte(data, '\n')
	if end < 0 {
		return 0, nil, nil
	}
	return end + 1, bytes.TrimSuffix(data[:end], []byte{'\r'}), nil
}

// verifyStream returns an error if a response is not a stream of events.
func (c *Client) verifyStream(answer *response) error {
	kind := answer.header.Get("Content-Type")
	mediaType, _, err := mime.ParseMediaType(kind)
	if answer.code == statusOK && err == nil && mediaType == "text/event-stream" {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(answer.body, maxEvent))
	if err != nil {
		return c.transportError(err)
	}
	failure, err := readFailure(data)
	if err != nil || answer.code == statusOK || readable(answer, data) != nil {
		return fmt.Errorf("events of allocnetd at %s: unexpected answer %q of type %q", c.cfg.Socket, answer.status, kind)
	}
	return failure.Err()
}

// decodeEvent decodes an event. The Data of an unknown type is nil.
func decodeEvent(data []byte) (Event, error) {
	var raw json.RawMessage
	sent := wire.Event{Data: &raw}
	if err := json.Unmarshal(data, &sent); err != nil {
		return Event{}, err
	}
	if sent.Type == "" || sent.Time.IsZero() || sent.ID == 0 && sent.Type != TypeLost || len(raw) == 0 || string(raw) == "null" {
		return Event{}, errors.New("it lacks its ID, time, type or data")
	}
	e := Event{ID: sent.ID, Time: sent.Time, Type: sent.Type, JSON: raw}
	switch e.Type {
	case TypeOperation:
		e.Data = new(Operation)
	case TypeForced:
		e.Data = new(Forced)
	case TypeReload:
		e.Data = new(Reload)
	case TypeConfiguration:
		e.Data = new(Configuration)
	case TypeHeal:
		e.Data = new(Heal)
	case TypeDenied:
		e.Data = new(Denied)
	case TypeLost:
		e.Data = new(Lost)
	default:
		return e, nil
	}
	return e, json.Unmarshal(raw, e.Data)
}
