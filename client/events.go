package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"

	"github.com/allocnet/allocnet/internal/api/wire"
)

// Events yields what happens in the daemon, after the event with the ID last as far
// as the daemon still has them, or from now on where last is 0. It goes on until the
// context or the loop ends, which is no error; the last pair has the error that
// broke it off, io.EOF where the daemon stopped.
func (c *Client) Events(ctx context.Context, last uint64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if err := c.follow(ctx, last, func(e Event) bool { return yield(e, nil) }); err != nil && ctx.Err() == nil {
			yield(Event{}, err)
		}
	}
}

func (c *Client) follow(ctx context.Context, last uint64, yield func(Event) bool) error {
	response, err := c.open(ctx, "GET", fmt.Sprintf("/v1/events?after=%d", last), nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		var failure wire.Failure
		if err := json.NewDecoder(response.Body).Decode(&failure); err != nil || failure.Error == nil {
			return fmt.Errorf("events of allocnetd at %s: unexpected answer %q", c.cfg.Socket, response.Status)
		}
		return remote(failure.Error)
	}
	lines := bufio.NewReader(response.Body)
	for {
		line, err := lines.ReadString('\n')
		switch data, isData := strings.CutPrefix(line, "data: "); {
		case errors.Is(err, io.EOF):
			return io.EOF
		case err != nil:
			return c.transportError(err)
		case isData:
			e, err := decodeEvent([]byte(data))
			if err != nil {
				return fmt.Errorf("decode event of allocnetd at %s: %w", c.cfg.Socket, err)
			}
			if !yield(e) {
				return nil
			}
		}
	}
}

func decodeEvent(data []byte) (Event, error) {
	var raw json.RawMessage
	sent := wire.Event{Data: &raw}
	if err := json.Unmarshal(data, &sent); err != nil {
		return Event{}, err
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
	case TypeLost:
		e.Data = new(Lost)
	default:
		return e, nil
	}
	return e, json.Unmarshal(raw, e.Data)
}
