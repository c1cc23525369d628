package sdk

import (
	"context"
	"net/netip"

	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// Restorer is a Repairer whose repair can be done for many attachments at once.
type Restorer interface {
	Repairer
	// Wanted returns what the host must have for an attachment, according to the
	// result of its ADD. It changes nothing.
	Wanted(context.Context, *CmdArgs) (*Wanted, error)
}

// Wanted is what the host must have for one attachment.
type Wanted struct {
	// First are objects that are restored before Elements, which refer to them.
	First []Object
	// Last are objects that make Elements effective. They are restored after those of all Wanted, and only if
	// that has succeeded.
	Last []Object
	// Elements are elements of allocnet's tables; nil means none.
	Elements *ruleset.Elements
	// Sources are addresses in a zone of firewalld.
	Sources []Source
	// Objects are all other objects of the host, in the order in which they are restored.
	Objects []Object
	// Restored is called after Elements were restored, if some were missing. It may
	// be nil.
	Restored func(context.Context) error
	// Settle is called at the end, once for all Wanted of which an element or an object was restored, with
	// their Subjects. It is the same function in all Wanted that have one; the others have nil.
	Settle  func(ctx context.Context, subjects []any) error
	Subject any
	// Individual reports that the attachment needs more, which only its own CHECK
	// and Repair find and restore.
	Individual bool
}

// Object is an object of the host. Objects with the same key are the same object, which
// is restored only once for all attachments.
type Object struct {
	Key string
	// Restore reports whether something was missing.
	Restore func(context.Context) (changed bool, err error)
}

// Source is an address in a zone of firewalld.
type Source struct {
	Zone    string
	Address netip.Addr
}

// Wanted returns what the host must have for an attachment, according to a plugin of
// its chain. A plugin that runs as a binary cannot tell.
func (e *Exec) Wanted(ctx context.Context, name string, a *CmdArgs) (w *Wanted, err error) {
	a.exec, a.Host, a.Instance = e, e.Host, e.Instance
	factory, native := e.Plugins[name]
	if !native {
		return &Wanted{}, nil
	}
	defer e.recovered(name, Repair, &err)
	p, why, err := e.choose(ctx, name, Repair, factory, a)
	if err != nil || why != nil || p == nil {
		return &Wanted{}, named(name, err)
	}
	if r, ok := p.(Restorer); ok {
		w, err = r.Wanted(ctx, a)
		return w, named(name, err)
	}
	_, repairs := p.(Repairer)
	_, inside := p.(Tuner)
	return &Wanted{Individual: repairs && !inside}, nil
}
