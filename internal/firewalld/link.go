package firewalld

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	"github.com/godbus/dbus/v5"
)

// D-Bus names of firewalld and of the bus itself.
const (
	name   = "org.fedoraproject.FirewallD1"
	path   = "/org/fedoraproject/FirewallD1"
	zones  = name + ".zone."
	bus    = "org.freedesktop.DBus"
	change = "NameOwnerChanged"

	defaultAddress = "unix:path=/run/dbus/system_bus_socket"
)

// link is a connection to the bus. The bus signals when firewalld starts and stops, so
// no polling is needed.
type link struct {
	conn    *dbus.Conn
	address string
	runs    atomic.Bool
	silence silence
}

var (
	errGone      = errors.New("its socket is gone")
	errSilentBus = errors.New("it does not answer")
)

// connect returns the connection, and connects again if it has ended. The error is
// ErrUnreachable if firewalld seems to be running, or the error of the context.
func (c *Client) connect(ctx context.Context) (*link, error) {
	address := os.Getenv("DBUS_SYSTEM_BUS_ADDRESS")
	if address == "" {
		address = defaultAddress
	}
	l, a, err := c.connected(address)
	if a == nil {
		return l, err
	}
	select {
	case <-a.done:
		return a.link, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("connect to the system bus: %w", context.Cause(ctx))
	}
}

// connected returns one of three: the connection, the error of a recent attempt, or the
// attempt that the caller must wait for.
func (c *Client) connected(address string) (*link, *attempt, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dialing != nil && c.dialing.address == address {
		return nil, c.dialing, nil
	}
	if c.link != nil {
		if c.link.conn.Connected() && c.link.address == address {
			return c.link, nil, nil
		}
		c.link.conn.Close()
		c.link = nil
	} else if c.failed.isRecent(address) {
		return nil, nil, c.failed.cause
	}
	c.dialing = &attempt{address: address, done: make(chan struct{})}
	go c.dial(c.dialing)
	return nil, c.dialing, nil
}

// dial connects and stores the outcome in the attempt and the client.
func (c *Client) dial(a *attempt) {
	defer close(a.done)
	l, err := dial(a.address)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dialing == a {
		c.dialing = nil
	}
	if err == nil {
		if c.link != nil {
			c.link.conn.Close() // connected to another address
		}
		a.link, c.link, c.known = l, l, true
		return
	}
	if c.known && errors.Is(err, fs.ErrNotExist) {
		err = errGone
	}
	a.err = fmt.Errorf("connect to the system bus: %w", err)
	if c.table.exists() || hasTraceFile() {
		a.err = fmt.Errorf("%w: %w", ErrUnreachable, a.err)
	}
	c.failed = failure{a.address, time.Now(), a.err}
}

// dial connects to the bus and queries whether firewalld is running.
func dial(address string) (*link, error) {
	ctx, cancel := context.WithTimeout(context.Background(), busTime)
	defer cancel()
	conn, err := dbus.Dial(address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() }) // for calls without a context
	l := &link{conn: conn, address: address}
	if err = l.start(ctx); !stop() {
		err = errSilentBus
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return l, nil
}

// start subscribes to the signal first and queries the state then, so that it misses no
// change.
func (l *link) start(ctx context.Context) error {
	if err := l.conn.Auth([]dbus.Auth{dbus.AuthExternal(fmt.Sprint(os.Geteuid()))}); err != nil {
		return err
	}
	if err := l.conn.Hello(); err != nil {
		return err
	}
	changes := make(chan *dbus.Signal, 16)
	l.conn.Signal(changes)
	err := l.conn.AddMatchSignalContext(ctx, dbus.WithMatchSender(bus), dbus.WithMatchInterface(bus),
		dbus.WithMatchMember(change), dbus.WithMatchArg(0, name))
	if err != nil {
		return err
	}
	runs, err := l.owned(ctx)
	if err != nil {
		return err
	}
	l.runs.Store(runs)
	go l.follow(changes)
	return nil
}

// follow updates the state from signals until the connection ends.
func (l *link) follow(changes <-chan *dbus.Signal) {
	for s := range changes {
		if s.Name != bus+"."+change || len(s.Body) != 3 || s.Body[0] != name {
			continue
		}
		owner, _ := s.Body[2].(string)
		l.runs.Store(owner != "")
		l.silence.end()
	}
}

// owned queries the bus whether firewalld is connected to it.
func (l *link) owned(ctx context.Context) (owned bool, err error) {
	err = l.conn.BusObject().CallWithContext(ctx, bus+".NameHasOwner", 0, name).Store(&owned)
	return owned, err
}

func (c *Client) owned(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	l, err := c.connect(ctx)
	if err != nil {
		return false, err
	}
	return l.owned(ctx)
}

// flushed reports whether firewalld's table does not exist, as after "nft flush
// ruleset". firewalld then cannot change sources until it is restarted, and the restart
// drops all sources.
func (c *Client) flushed(ctx context.Context) (bool, error) {
	var backend dbus.Variant
	object, property := dbus.ObjectPath(path+"/config"), []any{name + ".config", "FirewallBackend"}
	if err := c.callOn(ctx, object, "org.freedesktop.DBus.Properties.Get", property, &backend); err != nil {
		return false, fmt.Errorf("read the backend of firewalld: %w", err)
	}
	if backend.Value() != "nftables" {
		return false, nil
	}
	exists, err := tableExists()
	return err == nil && !exists, err
}

// call calls a method of firewalld.
func (c *Client) call(ctx context.Context, method string, args []any, result any) error {
	return c.callOn(ctx, path, method, args, result)
}

func (c *Client) callOn(ctx context.Context, object dbus.ObjectPath, method string, args []any, result any) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	l, err := c.connect(ctx)
	if err != nil {
		return err
	}
	return l.call(ctx, object, method, args, result)
}
