package conntrack

import (
	"context"
	"fmt"
	"net/netip"
)

// Entry is a connection that the kernel tracks.
type Entry struct {
	Protocol            uint8
	Source, Destination netip.Addr // of the first packet
	Port                uint16     // its destination port
	Answers             netip.Addr // the source of the answers
	AnswersTo           netip.Addr // their destination: another address than Source if that is translated
}

func (e *entry) exported() Entry {
	return Entry{
		Protocol: e.protocol, Source: e.source, Destination: e.destination, Port: e.port,
		Answers: e.answers.source, AnswersTo: e.answers.destination,
	}
}

// none reports whether the kernel's counter shows that there are no entries. A list
// would show the same, but takes some 20 ms: the kernel walks the table of all
// namespaces.
func (c *Conn) none() bool {
	n, err := c.readCount()
	return err == nil && n == 0
}

// Empty reports whether it is known that there are no entries.
func (c *Conn) Empty() bool { return c.none() }

// List calls a function with each entry of a family (AF_INET, AF_INET6). A kernel
// without connection tracking has no entries. errors.Is finds EINTR if entries changed
// in the meantime, so that some may be missing, and fs.ErrPermission.
func (c *Conn) List(ctx context.Context, family uint8, use func(Entry)) error {
	if c.none() {
		return nil
	}
	err := c.read(ctx, family, func(e *entry) { use(e.exported()) })
	if err != nil && !isUnsupported(err) {
		return fmt.Errorf("list tracked connections: %w", err)
	}
	return nil
}

// DeleteMatching deletes the entries of a family for which match returns true. Its
// errors are those of List. After an error of the list, the entries listed before it
// are deleted all the same.
func (c *Conn) DeleteMatching(ctx context.Context, family uint8, match func(Entry) bool) error {
	if c.none() {
		return nil
	}
	err := c.deleteEach(ctx, filter{family: family}, func(e *entry) bool { return match(e.exported()) })
	if err != nil {
		return fmt.Errorf("delete tracked connections: %w", err)
	}
	return nil
}
