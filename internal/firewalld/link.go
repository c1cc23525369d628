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

// firewalld and the bus, as D-Bus names them.
const (
	name   = "org.fedoraproject.FirewallD1"
	path   = "/org/fedoraproject/FirewallD1"
	zones  = name + ".zone."
	bus    = "org.freedesktop.DBus"
	change = "NameOwnerChanged"

	defaultAddress = "unix:path=/run/dbus/system_bus_socket"
)

// link is one connection. The bus reports when firewalld starts and ends, so that
// nobody has to ask.
type link struct {
	conn    *dbus.Conn
	address string
	runs    atomic.Bool
	silence silence
}

var errGone = errors.New("its socket is gone")

// connect returns the connection, made anew where it has ended. The error is
// ErrUnreachable where firewalld runs all the same, and that of the context where it ends
// first.
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

// connected returns the connection, the error of the last attempt if that was just now,
// or the attempt to wait for.
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
	} else if c.failed.address == address && time.Since(c.failed.at) < retryTime {
		return nil, nil, c.failed.cause
	}
	c.dialing = &attempt{address: address, done: make(chan struct{})}
	go c.dial(c.dialing)
	return nil, c.dialing, nil
}

// dial makes an attempt, and notes what became of it.
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
			c.link.conn.Close() // of another address
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

// dial connects and finds out whether firewalld runs.
func dial(address string) (*link, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	conn, err := dbus.Dial(address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() }) // ends what has no context
	l := &link{conn: conn, address: address}
	if err = l.start(ctx); !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return l, nil
}

// start subscribes before it asks, so that no change is missed.
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

// follow ends with the connection.
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

// owned asks the bus whether firewalld is connected to it.
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

// flushed reports whether firewalld's table is gone, as after "nft flush ruleset". Until
// it is started again, which drops all sources, firewalld cannot change any.
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
