package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/allocnet/allocnet/internal/wire"
)

// admission bounds the connections that are open, when they are accepted: however
// many clients connect, and do nothing, descriptors and memory stay bounded, and
// root gets in.
type admission struct {
	most    int // connections of all
	others  int // those of all who are not root; the rest is kept for root
	perUser int // those of one of them

	mu     sync.Mutex
	open   map[uint32]int // by user
	total  int
	idle   map[*conn]struct{} // between two requests, and not root's
	excuse int                // connections over a limit that are still answered
}

// excuses is how many connections over a limit there may be beside the others, to
// be told so; more are closed at once.
const excuses = 32

func newAdmission(most int) *admission {
	others := max(most-max(most/8, 1), 1)
	return &admission{
		most: most, others: others, perUser: max(others/2, 1),
		open: map[uint32]int{}, idle: map[*conn]struct{}{},
	}
}

// conn is a connection that was judged. It counts until it is closed.
type conn struct {
	*net.UnixConn
	verdict
	user    uint32
	release func()
	gone    bool // it does not count any more
}

// Close implements net.Conn.
func (c *conn) Close() error {
	err := c.UnixConn.Close()
	c.release()
	return err
}

// admit counts a connection of a user. Over the limit, one that is idle makes room;
// where there is none, the error is wire.ErrBusy. One that was refused has its own
// error, and nothing makes room for it. ok says whether there is still a place from
// which to say so.
func (d *admission) admit(c *conn) (ok bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err = c.err; err == nil {
		err = d.full(c)
		if err != nil && d.closeIdle(c) {
			err = d.full(c)
		}
	}
	if err != nil {
		if d.excuse >= excuses {
			return false, err
		}
		d.excuse++
		c.release = d.giveBack(func() { d.excuse-- })
		return true, err
	}
	d.total++
	d.open[c.user]++
	c.release = d.giveBack(func() { d.remove(c) })
	return true, nil
}

func (d *admission) full(c *conn) error {
	others := d.total - d.open[0]
	switch {
	case d.total >= d.most:
		return fmt.Errorf("%w: %d connections are open", wire.ErrBusy, d.total)
	case c.root:
		return nil
	case others >= d.others:
		return fmt.Errorf("%w: %d connections of others than root are open", wire.ErrBusy, others)
	case d.open[c.user] >= d.perUser:
		return fmt.Errorf("%w: user %d has %d connections open", wire.ErrBusy, c.user, d.open[c.user])
	}
	return nil
}

// closeIdle closes a connection that is idle, of the same user where only that one
// has too many.
func (d *admission) closeIdle(wants *conn) bool {
	ownOnly := !wants.root && d.total < d.most && d.total-d.open[0] < d.others
	for c := range d.idle {
		if ownOnly && c.user != wants.user {
			continue
		}
		d.remove(c)
		_ = c.UnixConn.Close() // the server finds out, and calls Close
		return true
	}
	return false
}

// remove forgets a connection, once.
func (d *admission) remove(c *conn) {
	if c.gone {
		return
	}
	c.gone = true
	delete(d.idle, c)
	d.total--
	if d.open[c.user]--; d.open[c.user] == 0 {
		delete(d.open, c.user)
	}
}

// giveBack is a release.
func (d *admission) giveBack(do func()) func() {
	return sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		do()
	})
}

// connState is told of every change of a connection.
func (d *admission) connState(nc net.Conn, s http.ConnState) {
	c, ok := nc.(*conn)
	if !ok || c.root || c.err != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if s == http.StateIdle && !c.gone {
		d.idle[c] = struct{}{}
	} else {
		delete(d.idle, c)
	}
}

// Listener makes a listener for the API's Server of one on a unix socket: it
// accepts connections within the Limits. What the Server gets from another listener,
// it refuses.
func (a *API) Listener(l net.Listener) net.Listener { return &listener{l, a} }

type listener struct {
	net.Listener
	api *API
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		stream, ok := accepted.(*net.UnixConn)
		if !ok {
			return nil, errors.Join(errors.New("the API is for unix sockets"), accepted.Close())
		}
		c := &conn{UnixConn: stream}
		c.user, c.root, c.err = l.api.judge(stream)
		ok, err = l.api.admission.admit(c)
		if ok {
			c.err = err
			return c, nil
		}
		refuse(stream)
	}
}

// refusalTime is what it may take to send a few bytes into an empty buffer.
const refusalTime = 10 * time.Millisecond

// refusalText is an answer to whatever is asked for.
var refusalText = sync.OnceValue(func() []byte {
	body, _ := json.Marshal(wire.Failure{Error: wire.FromError(fmt.Errorf("%w: too many connections are open", wire.ErrBusy))})
	return fmt.Appendf(nil, "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"+
		"Connection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
})

// refuse closes a connection that there is no place for.
func refuse(c *net.UnixConn) {
	_ = c.SetWriteDeadline(time.Now().Add(refusalTime))
	_, _ = c.Write(refusalText())
	_ = c.Close()
}
