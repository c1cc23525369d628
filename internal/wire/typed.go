package wire

import (
	"cmp"
	"errors"
	"net/netip"
	"syscall"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
)

// typedError is a type of error that holds more than its text: how the first one that
// errors.As finds is kept in an Error, and how it comes out again, nil where none did.
type typedError struct {
	keep    func(error, *Error)
	restore func(*Error) error
}

// typedAs is that of the type E.
func typedAs[E error](keep func(E, *Error), restore func(*Error) error) typedError {
	return typedError{
		keep: func(err error, to *Error) {
			if found := *new(E); errors.As(err, &found) {
				keep(found, to)
			}
		},
		restore: restore,
	}
}

// typed are all of them.
func typed() []typedError {
	return []typedError{
		typedAs(keepCNI, restoreCNI),
		typedAs(keepConflict, restoreConflict),
		typedAs(keepPortTaken, restorePortTaken),
		typedAs(keepListener, restoreListener),
		typedAs(keepPort, restorePort),
		typedAs(keepLeftovers, restoreLeftovers),
		typedAs(keepUnserved, restoreUnserved),
		typedAs(keepInUse, restoreInUse),
		typedAs(keepFile, restoreFile),
		typedAs(keepRecord, restoreRecord),
		typedAs(func(err syscall.Errno, to *Error) { to.Errno = unix.ErrnoName(err) }, restoreErrno),
		typedAs(keepAbout, restoreAbout),
	}
}

func keepCNI(err *types.Error, to *Error) {
	to.CNICode, to.CNIMessage, to.Details = &err.Code, text(err.Msg), text(err.Details)
}

func restoreCNI(e *Error) error {
	if e.CNICode == nil {
		return nil
	}
	return &types.Error{Code: *e.CNICode, Msg: e.CNIMessage, Details: e.Details}
}

func keepConflict(err *portmap.ConflictError, to *Error) {
	to.Conflict = &Conflict{err.Mapping, err.Other, err.ID, err.OtherID}
}

func restoreConflict(e *Error) error {
	c := e.Conflict
	if c == nil {
		return nil
	}
	return &portmap.ConflictError{Mapping: c.Mapping, Other: c.Other, ID: c.ID, OtherID: c.OtherID}
}

func keepListener(err *configurator.ListenerError, to *Error) {
	to.Listener = &Listener{err.ID, err.Mapping, err.Address, int(err.UID), err.PID, text(err.Process)}
}

func restoreListener(e *Error) error {
	l := e.Listener
	if l == nil {
		return nil
	}
	return &configurator.ListenerError{ID: l.ID, Mapping: l.Mapping, Address: l.Address, UID: uint32(l.UID), PID: l.PID, Process: l.Process}
}

func keepPort(err *portmap.PortError, to *Error) {
	to.Port = &Port{err.Index, err.Label, err.Field, err.Value, err.Reason}
}

func restorePort(e *Error) error {
	p := e.Port
	if p == nil {
		return nil
	}
	return &portmap.PortError{Index: p.Index, Label: p.Label, Field: p.Field, Value: p.Value, Reason: p.Reason}
}

func keepLeftovers(err *configurator.LeftoverError, to *Error) {
	to.Allocation, to.Leftovers = err.ID, err.Leftovers
}

func restoreLeftovers(e *Error) error {
	if len(e.Leftovers) == 0 {
		return nil
	}
	return &configurator.LeftoverError{ID: e.Allocation, Leftovers: e.Leftovers}
}

func keepUnserved(err *configurator.UnservedError, to *Error) {
	to.Unserved = &Unserved{err.ID, err.Capabilities, err.Networks}
}

func restoreUnserved(e *Error) error {
	u := e.Unserved
	if u == nil {
		return nil
	}
	return &configurator.UnservedError{ID: u.ID, Capabilities: u.Capabilities, Networks: u.Networks}
}

func keepInUse(err *configurator.NetnsError, to *Error) {
	to.InUse = &InUse{err.Netns, err.ID, err.OtherID}
}

func restoreInUse(e *Error) error {
	u := e.InUse
	if u == nil {
		return nil
	}
	return &configurator.NetnsError{Netns: u.Netns, ID: u.ID, OtherID: u.OtherID}
}

func keepFile(err *configurator.NetworkError, to *Error) {
	to.File, to.Reason = err.File, FromError(err.Err)
}

func restoreFile(e *Error) error {
	if e.File == "" {
		return nil
	}
	return &configurator.NetworkError{File: e.File, Err: cmp.Or(e.Reason, noReason).Err()}
}

func keepAbout(err *configurator.AllocationError, to *Error) {
	to.About = &About{err.ID, FromError(err.Err)}
}

func restoreAbout(e *Error) error {
	if e.About == nil {
		return nil
	}
	return &configurator.AllocationError{ID: e.About.ID, Err: cmp.Or(e.About.Error, noReason).Err()}
}

// noReason is for a daemon that gives none.
var noReason = &Error{Kind: internal.Word, Message: "no reason is given"}

func keepPortTaken(err *ruleset.PortTakenError, to *Error) {
	m, o := err.Mapping, err.Owner
	to.PortTaken = &PortTaken{
		HostPort: int(m.HostPort), Protocol: int(m.Protocol), Network: o.Network, ID: o.ID, Interface: o.IfName, Instance: o.Instance,
	}
	if m.HostIP.IsValid() {
		to.PortTaken.HostIP = m.HostIP.String()
	}
	if m.To.IsValid() {
		to.PortTaken.To = m.To.String()
	}
}

func restorePortTaken(e *Error) error {
	p := e.PortTaken
	if p == nil {
		return nil
	}
	hostIP, _ := netip.ParseAddr(p.HostIP) // the zero Addr stands for every one
	to, _ := netip.ParseAddrPort(p.To)
	return &ruleset.PortTakenError{
		Mapping: ruleset.Mapping{HostIP: hostIP, HostPort: uint16(p.HostPort), Protocol: uint8(p.Protocol), To: to},
		Owner:   names.Owner{Network: p.Network, ID: p.ID, IfName: p.Interface, Instance: p.Instance},
	}
}

func keepRecord(err *record.CorruptError, to *Error) {
	to.Record = &Record{err.ID, err.File, errors.Is(err, record.ErrNewer), text(err.Err.Error())}
}

func restoreRecord(e *Error) error {
	r := e.Record
	if r == nil {
		return nil
	}
	reason := &remoteError{message: r.Reason}
	if r.Newer {
		reason.causes = []error{record.ErrNewer}
	}
	return &record.CorruptError{ID: r.ID, File: r.File, Err: reason}
}

// lastErrno is the number of the kernel's last error.
const lastErrno = 133

func restoreErrno(e *Error) error {
	for n := syscall.Errno(1); e.Errno != "" && n <= lastErrno; n++ {
		if unix.ErrnoName(n) == e.Errno {
			return n
		}
	}
	return nil
}
