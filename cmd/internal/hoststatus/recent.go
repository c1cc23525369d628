package hoststatus

import (
	"slices"
	"sync"
	"time"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/internal/redact"
)

// keptErrors is the number of errors that a Recent keeps.
const keptErrors = 10

// Recent keeps the last errors and counts repairs. The zero value is empty. It is safe for
// concurrent use.
type Recent struct {
	mu      sync.Mutex
	errors  []client.RecentError // the newest last
	repairs client.Repairs
}

// Failed notes the failure of an operation. The ID may be "".
func (r *Recent) Failed(operation, id string, err error) {
	r.add(client.RecentError{Time: time.Now(), Operation: operation, ID: id, Error: text(err)})
}

// Healed notes a repair, or an allocation that became unhealthy.
func (r *Recent) Healed(h client.Heal) {
	if h.Error != "" {
		r.add(client.RecentError{Time: time.Now(), Operation: "heal", ID: h.Unhealthy, Error: redact.Bound(h.Error)})
	}
	if h.Restored == 0 {
		return
	}
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.repairs = client.Repairs{Count: r.repairs.Count + 1, Last: &now, Change: h.Change}
}

func (r *Recent) add(e client.RecentError) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.errors = append(r.errors, e); len(r.errors) > keptErrors {
		r.errors = slices.Delete(r.errors, 0, 1)
	}
}

// read returns the errors, the newest first, and the repairs.
func (r *Recent) read() ([]client.RecentError, client.Repairs) {
	if r == nil {
		return []client.RecentError{}, client.Repairs{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	newest := append([]client.RecentError{}, r.errors...)
	slices.Reverse(newest)
	return newest, r.repairs
}

// text returns the text of an error without configurations, of a bounded length.
func text(err error) string { return redact.Bound(redact.Text(err.Error())) }
