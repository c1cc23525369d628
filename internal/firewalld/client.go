package firewalld

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
)

// ErrUnreachable means that firewalld is running but not reachable. It wraps
// the cause.
var ErrUnreachable = errors.New("firewalld is running, but not reachable over D-Bus")

// DefaultZone is the zone that accepts everything from its sources.
const DefaultZone = "trusted"

// Client is a connection to the system bus. It connects at the first use, and
// again after the bus was restarted. It is safe for concurrent use; the zero
// value is ready. Every method but Runs fails if firewalld is not running.
type Client struct {
	mu      sync.Mutex
	link    *link
	known   bool     // a connection has succeeded before
	failed  failure  // of the last attempt
	dialing *attempt // the running attempt, for which all callers wait; nil if none
	table   tableWatch
}

// Shared is the client of this process.
var Shared = &Client{}

const (
	// callTime bounds one call. firewalld serves calls one after the other, and none
	// during a reload.
	callTime = 10 * time.Second
	// retryTime is the minimum time between two attempts to connect. If the bus was silent, it is
	// silenceTime.
	retryTime = time.Second
)

// busTime bounds an attempt to connect: it asks the bus itself, which is not busy with calls, for
// each command of a process.
var busTime = 2 * time.Second

// failure is a failed attempt to connect.
type failure struct {
	address string
	at      time.Time
	cause   error
}

// isRecent reports whether it is too early for another attempt.
func (f failure) isRecent(address string) bool {
	after := retryTime
	if errors.Is(f.cause, errSilentBus) {
		after = silenceTime
	}
	return f.address == address && time.Since(f.at) < after
}

// attempt is an attempt to connect. link and err are valid once done is closed.
type attempt struct {
	address string
	done    chan struct{}
	link    *link
	err     error
}

// Runs reports whether firewalld is running. While the bus is connected, it makes no
// call. If the bus is not reachable, but there are traces of firewalld on the host, the
// error is ErrUnreachable. It wraps fs.ErrNotExist if the bus has no socket and was
// never connected. For a nil Client, Runs returns false.
func (c *Client) Runs(ctx context.Context) (bool, error) {
	if c == nil {
		return false, nil
	}
	l, err := c.connect(ctx)
	if err == nil {
		return l.runs.Load(), nil
	}
	if errors.Is(err, ErrUnreachable) || ctx.Err() != nil {
		return false, err
	}
	return false, nil
}

// Add makes an address a source of a zone. If it is a source of that zone already, Add
// succeeds; if it is a source of another zone, Add returns an error.
func (c *Client) Add(ctx context.Context, zone string, address netip.Addr) error {
	var is string
	err := c.call(ctx, zones+"addSource", []any{zone, source(address)}, &is)
	if err == nil || hasCode(err, "ZONE_ALREADY_SET") {
		return nil
	}
	return fmt.Errorf("add %s to zone %q of firewalld: %w", address, zone, err)
}

// Has reports whether an address is a source of a zone and firewalld's rules exist.
func (c *Client) Has(ctx context.Context, zone string, address netip.Addr) (is bool, err error) {
	if err := c.call(ctx, zones+"querySource", []any{zone, source(address)}, &is); err != nil {
		return false, fmt.Errorf("query %s in zone %q of firewalld: %w", address, zone, err)
	}
	if !is {
		return false, nil
	}
	flushed, err := c.flushed(ctx)
	return !flushed && err == nil, err
}

// Remove removes an address from a zone. It is idempotent and does not affect other
// zones. If firewalld has stopped, or its rules were flushed, it succeeds.
func (c *Client) Remove(ctx context.Context, zone string, address netip.Addr) error {
	var is string
	err := c.call(ctx, zones+"removeSource", []any{zone, source(address)}, &is)
	if err == nil || hasCode(err, "UNKNOWN_SOURCE", "ZONE_CONFLICT", "INVALID_ZONE", "NOT_ENABLED") {
		return nil
	}
	if runs, goneErr := c.owned(ctx); goneErr == nil && !runs {
		return nil
	}
	if flushed, flushErr := c.flushed(ctx); flushErr == nil && flushed {
		return nil
	}
	return fmt.Errorf("remove %s from zone %q of firewalld: %w", address, zone, err)
}

// Sources returns the zone of each single address that is a source. If firewalld's
// rules were flushed, it returns none.
func (c *Client) Sources(ctx context.Context) (map[netip.Addr]string, error) {
	if flushed, err := c.flushed(ctx); err != nil || flushed {
		return nil, err
	}
	active, err := c.activeZones(ctx)
	if err != nil {
		return nil, err
	}
	list := make(map[netip.Addr]string)
	for zone, of := range active {
		for _, text := range of["sources"] {
			if p, err := netip.ParsePrefix(text); err == nil && p.IsSingleIP() {
				list[p.Addr()] = zone
			} else if a, err := netip.ParseAddr(text); err == nil {
				list[a] = zone
			}
		}
	}
	return list, nil
}

func (c *Client) activeZones(ctx context.Context) (active map[string]map[string][]string, err error) {
	if err := c.call(ctx, zones+"getActiveZones", nil, &active); err != nil {
		return nil, fmt.Errorf("list the sources of firewalld's zones: %w", err)
	}
	return active, nil
}

// OtherZones returns, for each of the addresses, another zone with a source that covers
// it: a network, or the address without a prefix length, which firewalld treats as a
// separate source.
func (c *Client) OtherZones(ctx context.Context, zone string, addresses []netip.Addr) (map[netip.Addr]string, error) {
	active, err := c.activeZones(ctx)
	list := make(map[netip.Addr]string)
	for other, of := range active {
		for _, text := range of["sources"] {
			p, err := netip.ParsePrefix(text)
			if a, addressErr := netip.ParseAddr(text); addressErr == nil {
				p, err = a.Prefix(a.BitLen())
			}
			for _, a := range addresses {
				if other != zone && err == nil && p.Contains(a) {
					list[a] = other
				}
			}
		}
	}
	return list, err
}

// source returns an address in the notation of the reference plugin. Removing a source
// requires the same text as adding it.
func source(a netip.Addr) string {
	a = a.Unmap()
	return netip.PrefixFrom(a, a.BitLen()).String()
}

// hasCode reports whether err is an exception of firewalld with one of the codes.
func hasCode(err error, codes ...string) bool {
	var refused dbus.Error
	if !errors.As(err, &refused) || refused.Name != name+".Exception" {
		return false
	}
	code, _, _ := strings.Cut(refused.Error(), ":")
	for _, one := range codes {
		if code == one {
			return true
		}
	}
	return false
}
