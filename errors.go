package allocnet

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/portmap"
)

// Errors that errors.Is finds in what a Service returns. Beside them, errors.As finds
// *types.Error of the CNI library with the code of a plugin, *portmap.ConflictError,
// *portmap.PortError, *NetworkError, *UnservedError, *NetnsError, *ListenerError,
// *PortTakenError, *RecordError, *StateDirError, *LeftoverError and, in what several allocations are
// about, *AllocationError.
var (
	// ErrInvalidConfig: the Config cannot be used.
	ErrInvalidConfig = errors.New("invalid configuration")
	// ErrInvalidAllocation: the Allocation cannot be set up as it is.
	ErrInvalidAllocation = errors.New("invalid allocation")
	// ErrDifferent: another allocation is set up under this ID, or the same one in
	// another network namespace than the path leads to now.
	ErrDifferent = errors.New("the allocation is set up differently")
	// ErrExists: an allocation is set up under this ID, or may be, as its record cannot
	// be read, and Allocation.MustBeNew is set. Nothing was checked or changed.
	ErrExists = errors.New("allocation exists already")
	// ErrNotFound: no such allocation is set up.
	ErrNotFound = errors.New("allocation not found")
	// ErrUnknownNetwork: no valid configuration has the name.
	ErrUnknownNetwork = errors.New("unknown network")
	// ErrUnserved: the allocation requests capabilities that no plugin of its
	// networks declares. errors.As finds an *UnservedError that names them.
	ErrUnserved = errors.New("no plugin serves a request")
	// ErrPluginNotInstalled: the binary of a plugin type was not found.
	ErrPluginNotInstalled = errors.New("plugin not installed")
	// ErrInvalidResult: the result of the plugins contradicts itself.
	ErrInvalidResult = errors.New("invalid CNI result")
	// ErrNoAddress: no interface of the result has an address, and the allocation
	// needs one; see Allocation.RequireAddress.
	ErrNoAddress = errors.New("no interface has an address")
	// ErrInUse: the network namespace belongs to another allocation, which a
	// *NetnsError names, or has an interface already where Setup would make one.
	ErrInUse = errors.New("network namespace is in use")
	// ErrUnprivileged: the process lacks a capability (capabilities(7)) without which
	// no network can be attached or removed. Nothing was done. errors.Is finds
	// fs.ErrPermission as well.
	ErrUnprivileged error = unprivileged{}
	// ErrExhausted: a network has no free address left.
	ErrExhausted = errors.New("no IP addresses available")
	// ErrBridgeFull: a bridge has the most ports that the kernel allows, 1023.
	ErrBridgeFull = errors.New("the bridge is full: it has 1023 ports, the most that the kernel allows; use another network, or ptp, which has no such limit")
	// ErrLimit: a limit of the host is reached; the text names the sysctl.
	ErrLimit = errors.New("a limit of the host is reached")
	// ErrPortTaken: a host port belongs in the kernel to an allocation that has no
	// record here. errors.As finds a *PortTakenError.
	ErrPortTaken = errors.New("host port is taken")
	// ErrListener: a process of the host listens on a host port, which Config.Listeners
	// refuses. Nothing was done. errors.As finds a *ListenerError.
	ErrListener = errors.New("a process of the host listens on the host port")
	// ErrSetUp: what was asked for is not done to an allocation that is set up.
	ErrSetUp = errors.New("allocation is set up")
	// ErrUnhealthy: a CHECK found that the network is not as ADD left it.
	ErrUnhealthy = errors.New("network is not as it was set up")
	// ErrNotChecked: whether the network is as ADD left it could not be found
	// out, because a CHECK could not be run to its end. It is left as it is.
	ErrNotChecked = errors.New("network could not be checked")
	// ErrIncomplete: something of the allocation may still be on the host; its
	// record is kept, so that Teardown or GC can go on.
	ErrIncomplete = errors.New("not everything could be taken away, the record is kept")
	// ErrStateDir: the state directory cannot be used: it can be written by other users,
	// cannot be read or written, or its file system is full. errors.As finds a
	// *StateDirError.
	ErrStateDir = errors.New("the state directory cannot be used")
	// ErrNewer: a newer version of allocnet wrote the record. errors.As finds a
	// *RecordError.
	ErrNewer = errors.New("written by a newer version of allocnet")
)

type unprivileged struct{}

func (unprivileged) Error() string { return "not privileged" }
func (unprivileged) Unwrap() error { return fs.ErrPermission }

// LeftoverError names what could not be removed from the host.
type LeftoverError struct {
	ID        string
	Leftovers []Leftover
}

func (e *LeftoverError) Error() string {
	parts := make([]string, len(e.Leftovers))
	for i, l := range e.Leftovers {
		parts[i] = l.String()
	}
	return fmt.Sprintf("allocation %q left on the host: %s", e.ID, strings.Join(parts, "; "))
}

// UnservedError names what an allocation requests and no plugin of its networks
// declares. Nothing was done. errors.Is finds ErrUnserved.
type UnservedError struct {
	ID           string
	Capabilities []string // sorted; the names are those of the CNI conventions
	Networks     []string // of the allocation, in order
}

func (e *UnservedError) Error() string {
	networks := make([]string, len(e.Networks))
	for i, name := range e.Networks {
		networks[i] = fmt.Sprintf("%q", name)
	}
	return fmt.Sprintf("set up allocation %q: no plugin of network %s declares %s; "+
		`add a plugin that declares it under "capabilities", omit the request, or allow unserved requests`,
		e.ID, strings.Join(networks, ", "), strings.Join(e.Capabilities, ", "))
}

func (e *UnservedError) Unwrap() error { return ErrUnserved }

// ListenerError names a host port that cannot be published because a process of the host
// listens on it. errors.Is finds ErrListener.
type ListenerError struct {
	ID      string          // of the allocation
	Mapping portmap.Mapping // that cannot be published
	Address string          // where the process listens, with the port
	UID     uint32          // of its user
	// PID and Process, its name, are of one process that has the socket open; 0 and ""
	// where it is not known.
	PID     int
	Process string
}

func (e *ListenerError) Error() string {
	process := "a process of the host"
	if e.PID != 0 {
		process = fmt.Sprintf("process %d (%q)", e.PID, e.Process)
	}
	return fmt.Sprintf("publish host port %s of allocation %q: %s of user %d listens on %s; choose another host port or end that process",
		published(e.Mapping), e.ID, process, e.UID, e.Address)
}

// Unwrap returns ErrListener.
func (e *ListenerError) Unwrap() error { return ErrListener }

// NetworkError names a file of the configuration directory that was skipped,
// and why.
type NetworkError struct {
	File string
	Err  error
}

func (e *NetworkError) Error() string { return e.File + ": " + e.Err.Error() }
func (e *NetworkError) Unwrap() error { return e.Err }

// NetnsError names the allocation that already has a requested network namespace.
// errors.Is finds ErrInUse.
type NetnsError struct {
	Netns   string
	ID      string // of the allocation that wants it; "" where it is for none
	OtherID string // of the one that has it
}

func (e *NetnsError) Error() string {
	return fmt.Sprintf("%v: %q is that of allocation %q", ErrInUse, e.Netns, e.OtherID)
}

// Unwrap returns ErrInUse.
func (e *NetnsError) Unwrap() error { return ErrInUse }

// AllocationError says of which allocation an error is, among those that Repair, GC
// and Recover join.
type AllocationError struct {
	ID  string
	Err error
}

// Error names the allocation, once.
func (e *AllocationError) Error() string {
	text, name := e.Err.Error(), fmt.Sprintf("allocation %q", e.ID)
	if strings.Contains(text, name) {
		return text
	}
	return name + ": " + text
}

// Unwrap returns the error of the allocation.
func (e *AllocationError) Unwrap() error { return e.Err }

// RecordError names a record that cannot be read back. errors.Is finds ErrNewer where a
// newer version of allocnet wrote it.
type RecordError struct {
	ID   string // of the allocation
	File string
	Err  error
}

func (e *RecordError) Error() string {
	return fmt.Sprintf("record of allocation %q in %s: %v", e.ID, e.File, e.Err)
}

// Unwrap returns what is wrong with the record.
func (e *RecordError) Unwrap() error { return e.Err }

// StateDirError names a state directory that cannot be used, and why. errors.Is finds
// ErrStateDir, and what the system said.
type StateDirError struct {
	Dir string
	Err error
}

// Error is the text of the cause, which names the file or directory.
func (e *StateDirError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *StateDirError) Unwrap() error { return e.Err }

// Is finds ErrStateDir.
func (e *StateDirError) Is(target error) bool { return target == ErrStateDir }

// PortTakenError names a host port that belongs in the kernel to another attachment, of
// which no record here tells. errors.Is finds ErrPortTaken.
type PortTakenError struct {
	Mapping portmap.Mapping // that cannot be published
	To      netip.AddrPort  // where it was to lead
	// Network, ID and Interface name the attachment that has the port, and Instance the
	// state directory of its record. All are "" where it is none of allocnet's. A name
	// that is too long for the kernel stands as its hash, which begins with '#'.
	Network, ID, Interface, Instance string
}

func (e *PortTakenError) Error() string {
	text := "somebody unnamed"
	if owner := (names.Owner{Network: e.Network, ID: e.ID, IfName: e.Interface, Instance: e.Instance}); owner != (names.Owner{}) {
		text = owner.String()
	}
	return fmt.Sprintf("host port %s is taken by %s", published(e.Mapping), text)
}

// Is finds ErrPortTaken.
func (e *PortTakenError) Is(target error) bool { return target == ErrPortTaken }

// published is a host port with its address, if it has one, and its protocol.
func published(m portmap.Mapping) string {
	port := strconv.Itoa(m.HostPort)
	if m.HostIP != "" {
		port = net.JoinHostPort(m.HostIP, port)
	}
	return port + "/" + m.Protocol
}
