package iptables

import "context"

// Lock serializes the ADDs of this process while they look for rules that attachments share,
// and create missing ones.
type Lock struct{ held chan struct{} }

// NewLock returns a lock that is free.
func NewLock() Lock { return Lock{held: make(chan struct{}, 1)} }

// Hold calls act while it holds the lock. If the context ends first, it returns the cause.
func (l Lock) Hold(ctx context.Context, act func() error) error {
	select {
	case l.held <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-l.held }()
	return act()
}
