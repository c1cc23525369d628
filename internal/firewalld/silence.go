package firewalld

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
)

// ErrSilent says that firewalld runs, but has not answered. Calls that follow return it
// without waiting again, until firewalld answers or silenceTime is over.
var ErrSilent = errors.New("firewalld does not answer")

const (
	// answerTime is how long firewalld may take before it counts as silent, even if
	// the caller gives up earlier.
	answerTime = time.Second
	// silenceTime is how long firewalld is not called after it did not answer. It
	// covers the rest of the operation that waited for it.
	silenceTime = 10 * time.Second
	// lateTime is how long an answer is waited for that no caller needs any more.
	lateTime = time.Minute
)

// silence is what a link knows of calls that ended before their answer.
type silence struct {
	mu sync.Mutex
	// over is closed when firewalld answers; nil while it is not silent.
	over chan struct{}
	// began is when the first of these calls was made, noted when the last one ended.
	began, noted time.Time
}

// note remembers a call that has ended without an answer.
func (s *silence) note(began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over == nil {
		s.over, s.began = make(chan struct{}), began
	}
	s.noted = time.Now()
}

// end forgets the silence: firewalld has answered, started or ended.
func (s *silence) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over != nil {
		close(s.over)
		s.over = nil
	}
}

// pending returns the channel to wait for and the rest of answerTime, or nil if
// firewalld may be called.
func (s *silence) pending() (over <-chan struct{}, rest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over == nil || time.Since(s.noted) >= silenceTime {
		return nil, 0
	}
	return s.over, answerTime - time.Since(s.began)
}

// wait returns at once unless a call ended without an answer. Of that one it awaits the
// answer, but no longer than answerTime after it was made: firewalld answers calls in
// their order.
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

// call calls a method of firewalld, and notes whether it answers.
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

// awaitLate ends the silence with the answer to a call that nobody waits for.
func (l *link) awaitLate(late context.Context, cancel context.CancelFunc, done <-chan *dbus.Call) {
	defer cancel()
	<-done
	if late.Err() == nil {
		l.silence.end()
	}
}
