package configurator

import (
	"slices"

	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/state/record"
)

// requesting returns a request for comparison with an existing allocation. Of the two, only one
// may name the networks of the Config: then the request gets the list of the allocation, if it
// leads to the same networks.
func (c *Configurator) requesting(current *plan.Plan, wanted *record.Record) *record.Record {
	if current.Inline || wanted.Inline || (len(current.Requested) == 0) == (len(wanted.Requested) == 0) {
		return wanted
	}
	names := slices.Clone(wanted.Requested)
	if len(names) == 0 {
		names = slices.Clone(c.cfg.Networks)
	}
	for i := range names {
		if n, err := c.lookup(names[i]); err == nil {
			names[i] = n.Name
		}
	}
	if !slices.EqualFunc(names, current.Attachments, func(name string, a record.Attachment) bool { return name == a.Network }) {
		return wanted
	}
	same := *wanted
	same.Requested = current.Requested
	return &same
}
