package ruleset

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Port is a port of the host, on whichever of its addresses.
type Port struct {
	Protocol uint8 // IPPROTO_TCP, _UDP, _SCTP
	Number   uint16
}

// askedSize has room for every port of three protocols, and for complete.
const askedSize = 3<<16 + 1

// complete is the entry that says that the set knows what was asked before it
// was there. No packet adds it.
var complete = Port{}

// TakeAsked returns which of the ports of a family (AF_INET, AF_INET6) somebody
// opened a connection to since they were taken last, mapped or not, and forgets
// them. Only for those can the kernel track connections that have to be flushed
// when a host port changes hands; to look through all that it tracks takes
// milliseconds.
//
// known is false while the set does not know what was asked for before the table
// was made: then any port may have been, and none is taken. See NoteAsked.
func (r *Ruleset) TakeAsked(ctx context.Context, family uint8, ports []Port) (asked []Port, known bool, err error) {
	if len(ports) == 0 {
		return nil, true, nil
	}
	list := askedElements(family, append([]Port{complete}, ports...))
	for range attempts {
		var found []element
		if found, err = r.lookUp(ctx, list); err != nil {
			break
		}
		if found[0].set == nil {
			return nil, false, nil
		}
		asked = asked[:0]
		var c change
		for i := range found[1:] {
			if found[i+1].set != nil && !slices.Contains(asked, ports[i]) {
				asked, c.remove = append(asked, ports[i]), append(c.remove, list[i+1])
			}
		}
		if err = r.apply(ctx, c); !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	if err != nil {
		return nil, false, fmt.Errorf("take ports that were asked for: %w", err)
	}
	return asked, true, nil
}

// NoteAsked adds ports to those that were asked for, which from then on is known
// of all. The table must be there.
func (r *Ruleset) NoteAsked(ctx context.Context, family uint8, ports []Port) error {
	list := askedElements(family, append(slices.Clone(ports), complete))
	err := r.commit(ctx, func(b *buffer) { putElements(b, list, unix.NFT_MSG_NEWSETELEM) })
	if err != nil {
		return fmt.Errorf("note ports that were asked for: %w", err)
	}
	return nil
}

func askedElements(family uint8, ports []Port) []element {
	s := ip.asked
	if family == unix.AF_INET6 {
		s = ip6.asked
	}
	list := make([]element, len(ports))
	for i, p := range ports {
		list[i].set = s
		list[i].key[0] = p.Protocol
		binary.BigEndian.PutUint16(list[i].key[4:], p.Number)
	}
	return list
}
