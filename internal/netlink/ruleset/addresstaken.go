package ruleset

import (
	"context"
	"fmt"

	"github.com/allocnet/allocnet/internal/names"
)

// Attached sets the function that returns the owners of all attachments that exist, as texts.
// It is called only if an element belongs to another owner. Without it, no other owner counts as
// existing. Attached must be called before the Ruleset is used.
func (r *Ruleset) Attached(list func() (map[string]bool, error)) { r.attached = list }

// RequireFree returns ErrAddressTaken if an address of the elements belongs to another attachment
// that exists. It ignores Mappings, and changes nothing.
func (r *Ruleset) RequireFree(ctx context.Context, e *Elements) error {
	list, err := e.elements()
	if err != nil {
		return fmt.Errorf("look up the owners of addresses: %w", err)
	}
	found, err := r.lookUp(ctx, list)
	if err != nil {
		return fmt.Errorf("look up the owners of addresses: %w", err)
	}
	h := holders{list: r.attached}
	for i := range list {
		if err := h.requireFree(&list[i], &found[i]); err != nil {
			return err
		}
	}
	return nil
}

// holders decides whose elements an attachment may take over: those of attachments that do not exist
// any more, because their addresses have been assigned again. It lists the attachments once.
type holders struct {
	list   func() (map[string]bool, error)
	listed map[string]bool
}

// requireFree returns ErrAddressTaken if the existing element with the key of want belongs to another
// attachment that exists. Attachments of one container share the elements of bridge ports, but no
// addresses. For mappings, see taken.
func (h *holders) requireFree(want, is *element) error {
	if h.list == nil || is.set == nil || is.owner == want.owner || want.set.shared || want.isMapping() {
		return nil
	}
	if _, ok := names.ParseOwner(is.owner); !ok || want.set.table == ports && sameContainer(want.owner, is.owner) {
		return nil
	}
	if h.listed == nil {
		listed, err := h.list()
		if err != nil {
			return fmt.Errorf("look for the attachment of %s: %w", is.owner, err)
		}
		h.listed = listed
	}
	if h.listed[is.owner] {
		what := want.String()
		if want.set.table != ports {
			what = "address " + want.address().String()
		}
		return fmt.Errorf("%s: %w: %s", what, ErrAddressTaken, is.owner)
	}
	return nil
}
