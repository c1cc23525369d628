package firewalld

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
)

// ErrSilent means that firewalld is running, but has not answered. Further calls return
// it without waiting again, until firewalld answers or silenceTime is over.
var ErrSilent = errors.New("firewalld does not answer")

const (
	// answerTime is how long firewalld may take before it counts as silent, even if the
	// context of the caller ends earlier.
	answerTime = time.Second
	// silenceTime is how long no calls are made after firewalld did not answer. It is
	// long enough for the rest of the operation.
	silenceTime = 10 * time.Second
	// lateTime bounds the wait for a late answer after the caller has returned.
	lateTime = time.Minute
)

// silence is the state of a link whose calls were not answered in time.
type silence struct {
	mu sync.Mutex
	// over is closed when firewalld answers. It is nil if firewalld is not silent.
	over chan struct{}
	// began is the time of the first unanswered call. noted is when the last one was
	// given up.
	began, noted time.Time
}

// note records that a call was given up without an answer.
func (s *silence) note(began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over == nil {
		s.over, s.began = make(chan struct{}), began
	}
	s.noted = time.Now()
}

// end resets the state, because firewalld has answered, started or stopped.
func (s *silence) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over != nil {
		close(s.over)
		s.over = nil
	}
}

// pending returns the channel to wait for and the rest of answerTime. The channel is
// nil if a call may be made.
func (s *silence) pending() (over <-chan struct{}, rest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over == nil || time.Since(s.noted) >= silenceTime {
		return nil, 0
	}
	return s.over, answerTime - time.Since(s.began)
}

// wait returns at once unless an earlier call was given up. In that case it waits for
// the answer to that call, until answerTime after its start: firewalld answers calls in
// order.
func (s *silence) wait(ctx context.Context) error {
	over, rest := s.pending()
	if over == nil {
		return nil
	}
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select {
	case <-over:
		return nil
	case <-timer.C:
		return ErrSilent
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrSilent, context.Cause(ctx))
	}
}

// call calls a method of firewalld. If the context ends first, it records the silence.
func (l *link) call(ctx context.Context, object dbus.ObjectPath, method string, args []any, result any) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := l.silence.wait(ctx); err != nil {
		return err
	}
	began := time.Now()
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), lateTime)
	done := make(chan *dbus.Call, 1)
	l.conn.Object(name, object).GoWithContext(late, method, dbus.FlagNoAutoStart, done, args...)
	select {
	case answer := <-done:
		cancel()
		l.silence.end()
		return answer.Store(result)
	case <-ctx.Done():
		l.silence.note(began)
		go l.awaitLate(late, cancel, done)
		return fmt.Errorf("%w: %w", ErrSilent, context.Cause(ctx))
	}
}

// awaitLate waits for a late answer, and ends the silence when it arrives.
func (l *link) awaitLate(late context.Context, cancel context.CancelFunc, done <-chan *dbus.Call) {
	defer cancel()
	<-done
	if late.Err() == nil {
		l.silence.end()
	}
}
