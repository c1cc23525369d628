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

// admission bounds the number of open connections when they are accepted. So idle
// clients cannot exhaust descriptors and memory, and root can always connect.
type admission struct {
	most    int // connections of all users
	others  int // connections of all users except root; the rest is reserved for root
	perUser int // connections of one user other than root

	mu     sync.Mutex
	open   map[uint32]int // by user
	total  int
	idle   map[*conn]struct{} // connections between two requests, except root's
	excess int                // connections over a limit that get an error as answer
}

// maxExcess is the maximum number of connections over a limit that get an error as
// answer; further ones are closed at once.
const maxExcess = 32

func newAdmission(most int) *admission {
	others := max(most-max(most/8, 1), 1)
	return &admission{
		most: most, others: others, perUser: max(others/2, 1),
		open: map[uint32]int{}, idle: map[*conn]struct{}{},
	}
}

// conn is an accepted connection with its verdict. It counts until it is closed.
type conn struct {
	*net.UnixConn
	verdict
	user    uint32
	release func()
	gone    bool // it no longer counts
}

// Close implements net.Conn.
func (c *conn) Close() error {
	err := c.UnixConn.Close()
	c.release()
	return err
}

// admit counts a connection of a user. Over the limit it closes an idle connection; if
// there is none, the error is wire.ErrBusy. A refused connection keeps its own error, and
// no other one is closed for it. With an error, ok reports whether the connection may
// stay open for an answer.
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
		if d.excess >= maxExcess {
			return false, err
		}
		d.excess++
		c.release = d.releaseOnce(func() { d.excess-- })
		return true, err
	}
	d.total++
	d.open[c.user]++
	c.release = d.releaseOnce(func() { d.remove(c) })
	return true, nil
}

// full returns wire.ErrBusy if c would exceed a limit.
func (d *admission) full(c *conn) error {
	others := d.total - d.open[0]
	switch {
	case d.total >= d.most:
		return fmt.Errorf("%w: %d connections are open", wire.ErrBusy, d.total)
	case c.root:
		return nil
	case others >= d.others:
		return fmt.Errorf("%w: %d connections of users other than root are open", wire.ErrBusy, others)
	case d.open[c.user] >= d.perUser:
		return fmt.Errorf("%w: user %d has %d connections open", wire.ErrBusy, c.user, d.open[c.user])
	}
	return nil
}

// closeIdle closes an idle connection to make room for c. If only the user's own limit
// is reached, it closes one of the same user.
func (d *admission) closeIdle(wanted *conn) bool {
	ownOnly := !wanted.root && d.total < d.most && d.total-d.open[0] < d.others
	for c := range d.idle {
		if ownOnly && c.user != wanted.user {
			continue
		}
		d.remove(c)
		_ = c.UnixConn.Close() // the server notices that and calls Close
		return true
	}
	return false
}

// remove removes a connection from the counts, once.
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

// releaseOnce returns a function that calls do under the lock, once.
func (d *admission) releaseOnce(do func()) func() {
	return sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		do()
	})
}

// connState tracks which connections are idle; http.Server calls it.
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

// Listener wraps a listener on a Unix socket for the API's Server: it accepts
// connections within the Limits. The Server refuses connections of other listeners.
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
			return nil, errors.Join(errors.New("the API needs a Unix socket"), accepted.Close())
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

// refusalTime is the maximum time to send a few bytes into an empty buffer.
const refusalTime = 10 * time.Millisecond

// refusalText is the answer to any request on a connection over the limit.
var refusalText = sync.OnceValue(func() []byte {
	body, _ := json.Marshal(wire.Failure{Error: wire.FromError(fmt.Errorf("%w: too many connections are open", wire.ErrBusy))})
	return fmt.Appendf(nil, "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"+
		"Connection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
})

// refuse answers on a connection over all limits and closes it.
func refuse(c *net.UnixConn) {
	_ = c.SetWriteDeadline(time.Now().Add(refusalTime))
	_, _ = c.Write(refusalText())
	_ = c.Close()
}
