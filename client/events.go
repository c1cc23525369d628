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
	"time"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/api/wire"
)

// Event is something that happened in the daemon.
type Event struct {
	// ID is one more than that of the event before, also across a restart, where
	// there is a gap. 0 for Lost.
	ID   uint64
	Time time.Time
	// Type is the word for what Data is: operation (*Operation), forced (*Forced),
	// reload (*Reload), configuration (*Configuration), lost (*Lost). Of other types
	// Data is nil.
	Type string
	Data any
	// JSON is the text of Data.
	JSON json.RawMessage
}

// Operation is an operation that ended.
type Operation struct {
	configurator.Step
	Seconds float64    `json:"seconds"`
	Outcome string     `json:"outcome"` // ok, or a word for the kind of failure
	Error   string     `json:"error,omitempty"`
	Steps   []StepTime `json:"steps,omitempty"` // in the order in which they ended
	Omitted int        `json:"stepsOmitted,omitempty"`
}

// StepTime is a step of an operation.
type StepTime struct {
	Step    string  `json:"step"`
	ID      string  `json:"id,omitempty"` // of the allocation, where it is not the operation's
	At      float64 `json:"at"`           // seconds after the operation began
	Seconds float64 `json:"seconds"`
	Outcome string  `json:"outcome"`
	Error   string  `json:"error,omitempty"`
}

// Forced is what DEL did not remove and force did.
type Forced struct {
	ID      string                  `json:"id"`
	Removed []configurator.Leftover `json:"removed"`
}

// Reload is that the daemon's configuration was read. With an Error the one before
// stays in force.
type Reload struct {
	Error string `json:"error,omitempty"`
}

// Configuration is that another network configuration is in force: its primary
// network, the file that it is in, why it cannot be used, if so, and what somebody
// has to mend.
type Configuration struct {
	Primary  string   `json:"primary,omitempty"`
	File     string   `json:"file,omitempty"`
	NotReady string   `json:"notReady,omitempty"`
	Problems []string `json:"problems,omitempty"`
}

// Lost tells that events are missing before the next one: Count of them, or, where
// the daemon was Restarted, nobody knows how many.
type Lost struct {
	Count     uint64 `json:"count,omitempty"`
	Restarted bool   `json:"restarted,omitempty"`
}

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
	case "operation":
		e.Data = new(Operation)
	case "forced":
		e.Data = new(Forced)
	case "reload":
		e.Data = new(Reload)
	case "configuration":
		e.Data = new(Configuration)
	case "lost":
		e.Data = new(Lost)
	default:
		return e, nil
	}
	return e, json.Unmarshal(raw, e.Data)
}
