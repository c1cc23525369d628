package accept

import (
	"context"
	"fmt"
	"sync"
)

// seen are the openings that the checks of one context found whole.
type seen struct {
	mu    sync.Mutex
	whole map[string]bool
}

type seenKey struct{}

// LookOnce returns a context for checks of many allocations in a row: an opening
// that one of them finds whole, the others do not look at again, however long that
// is ago. What one of them finds missing, the next looks for as ever, so that it
// sees what was mended meanwhile.
func LookOnce(ctx context.Context) context.Context {
	return context.WithValue(ctx, seenKey{}, &seen{whole: map[string]bool{}})
}

// seenIn is what the checks of a context share; nil if each is to look.
func seenIn(ctx context.Context) *seen {
	s, _ := ctx.Value(seenKey{}).(*seen)
	return s
}

func (s *seen) has(f *family, admins []string) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.whole[seenName(f, admins)]
}

func (s *seen) add(f *family, admins []string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.whole[seenName(f, admins)] = true
}

func seenName(f *family, admins []string) string { return fmt.Sprintf("%s %q", f.program, admins) }
