package wire

import (
	"cmp"
	"errors"
	"net/netip"
	"strconv"
	"syscall"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/portmap"
)

// typedError encodes and decodes one type of error. keep copies the first error of that
// type that errors.As finds into an Error; restore returns it, or nil if the Error has
// none.
type typedError struct {
	keep    func(error, *Error)
	restore func(*Error) error
}

// typedAs returns the typedError of the type E.
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

// typed returns all types.
func typed() []typedError {
	return []typedError{
		typedAs(keepCNI, restoreCNI),
		typedAs(keepConflict, restoreConflict),
		typedAs(keepPortTaken, restorePortTaken),
		typedAs(keepListener, restoreListener),
		typedAs(keepRevision, restoreRevision),
		typedAs(keepSubnet, restoreSubnet),
		typedAs(keepPort, restorePort),
		typedAs(keepLeftovers, restoreLeftovers),
		typedAs(keepUnserved, restoreUnserved),
		typedAs(keepInUse, restoreInUse),
		typedAs(keepFile, restoreFile),
		typedAs(keepStateDir, restoreStateDir),
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

func keepListener(err *allocnet.ListenerError, to *Error) {
	to.Listener = &Listener{err.ID, err.Mapping, err.Address, int(err.UID), err.PID, text(err.Process)}
}

func restoreListener(e *Error) error {
	l := e.Listener
	if l == nil {
		return nil
	}
	return &allocnet.ListenerError{ID: l.ID, Mapping: l.Mapping, Address: l.Address, UID: uint32(l.UID), PID: l.PID, Process: l.Process}
}

func keepRevision(err *allocnet.RevisionError, to *Error) {
	to.Revision = &Revision{err.ID, err.Wanted, err.Current}
}

func restoreRevision(e *Error) error {
	if e.Revision == nil {
		return nil
	}
	return &allocnet.RevisionError{ID: e.Revision.ID, Wanted: e.Revision.Wanted, Current: e.Revision.Current}
}

func keepSubnet(err *allocnet.SubnetError, to *Error) {
	to.Subnet = &Subnet{text(err.Network), text(err.File), err.Subnet.String(), text(err.Taken)}
}

func restoreSubnet(e *Error) error {
	s := e.Subnet
	if s == nil {
		return nil
	}
	prefix, err := netip.ParsePrefix(s.Subnet)
	if err != nil {
		return nil
	}
	return &allocnet.SubnetError{Network: s.Network, File: s.File, Subnet: prefix, Taken: s.Taken}
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

func keepLeftovers(err *allocnet.LeftoverError, to *Error) {
	to.Allocation, to.Leftovers = err.ID, err.Leftovers
}

func restoreLeftovers(e *Error) error {
	if len(e.Leftovers) == 0 {
		return nil
	}
	return &allocnet.LeftoverError{ID: e.Allocation, Leftovers: e.Leftovers}
}

func keepUnserved(err *allocnet.UnservedError, to *Error) {
	to.Unserved = &Unserved{err.ID, err.Capabilities, err.Networks}
}

func restoreUnserved(e *Error) error {
	u := e.Unserved
	if u == nil {
		return nil
	}
	return &allocnet.UnservedError{ID: u.ID, Capabilities: u.Capabilities, Networks: u.Networks}
}

func keepInUse(err *allocnet.NetnsError, to *Error) {
	to.InUse = &InUse{err.Netns, err.ID, err.OtherID}
}

func restoreInUse(e *Error) error {
	u := e.InUse
	if u == nil {
		return nil
	}
	return &allocnet.NetnsError{Netns: u.Netns, ID: u.ID, OtherID: u.OtherID}
}

func keepFile(err *allocnet.NetworkError, to *Error) {
	to.File, to.Reason = err.File, FromError(err.Err)
}

func restoreFile(e *Error) error {
	if e.File == "" {
		return nil
	}
	return &allocnet.NetworkError{File: e.File, Err: cmp.Or(e.Reason, noReason).Err()}
}

func keepAbout(err *allocnet.AllocationError, to *Error) {
	to.About = &About{err.ID, FromError(err.Err)}
}

func restoreAbout(e *Error) error {
	if e.About == nil {
		return nil
	}
	return &allocnet.AllocationError{ID: e.About.ID, Err: cmp.Or(e.About.Error, noReason).Err()}
}

// noReason replaces a missing reason in a response.
var noReason = &Error{Kind: internal.Word, Message: "no reason is given"}

func keepPortTaken(err *allocnet.PortTakenError, to *Error) {
	to.PortTaken = &PortTaken{
		HostIP: err.Mapping.HostIP, HostPort: err.Mapping.HostPort, Protocol: protocolNumber(err.Mapping.Protocol),
		Network: err.Network, ID: err.ID, Interface: err.Interface, Instance: err.Instance,
	}
	if err.To.IsValid() {
		to.PortTaken.To = err.To.String()
	}
}

func restorePortTaken(e *Error) error {
	p := e.PortTaken
	if p == nil {
		return nil
	}
	to, _ := netip.ParseAddrPort(p.To)
	return &allocnet.PortTakenError{
		Mapping: portmap.Mapping{HostIP: p.HostIP, HostPort: p.HostPort, ContainerPort: int(to.Port()), Protocol: protocolName(p.Protocol)},
		To:      to, Network: p.Network, ID: p.ID, Interface: p.Interface, Instance: p.Instance,
	}
}

// protocols are the numbers of the protocols that have ports, as in the header of IP.
var protocols = map[string]int{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}

// protocolNumber returns the number of a protocol. Unknown protocols are named by their number.
func protocolNumber(name string) int {
	if number, ok := protocols[name]; ok {
		return number
	}
	number, _ := strconv.Atoi(name)
	return number
}

func protocolName(number int) string {
	for name, n := range protocols {
		if n == number {
			return name
		}
	}
	return strconv.Itoa(number)
}

func keepStateDir(err *allocnet.StateDirError, to *Error) {
	to.StateDir = &StateDir{err.Dir, FromError(err.Err)}
}

func restoreStateDir(e *Error) error {
	if e.StateDir == nil {
		return nil
	}
	return &allocnet.StateDirError{Dir: e.StateDir.Dir, Err: cmp.Or(e.StateDir.Error, noReason).Err()}
}

func keepRecord(err *allocnet.RecordError, to *Error) {
	to.Record = &Record{err.ID, err.File, errors.Is(err, allocnet.ErrNewer), text(err.Err.Error())}
}

func restoreRecord(e *Error) error {
	r := e.Record
	if r == nil {
		return nil
	}
	reason := &remoteError{message: r.Reason}
	if r.Newer {
		reason.causes = []error{allocnet.ErrNewer}
	}
	return &allocnet.RecordError{ID: r.ID, File: r.File, Err: reason}
}

// lastErrno is the largest error number of the kernel.
const lastErrno = 133

func restoreErrno(e *Error) error {
	for n := syscall.Errno(1); e.Errno != "" && n <= lastErrno; n++ {
		if unix.ErrnoName(n) == e.Errno {
			return n
		}
	}
	return nil
}
