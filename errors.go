package allocnet

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/portmap"
)

// Errors of a Service, for errors.Is. errors.As also finds these types: *types.Error of
// the CNI library, with the error code of a plugin; *portmap.ConflictError,
// *portmap.PortError, *NetworkError, *UnservedError, *NetnsError, *ListenerError,
// *RevisionError, *SubnetError, *PortTakenError, *RecordError, *StateDirError and *LeftoverError. GC, Repair and Recover
// wrap the errors of each allocation in an *AllocationError and join them.
var (
	// ErrInvalidConfig: the Config is invalid.
	ErrInvalidConfig = errors.New("invalid configuration")
	// ErrInvalidAllocation: the Allocation is invalid.
	ErrInvalidAllocation = errors.New("invalid allocation")
	// ErrDifferent: an allocation with different parameters is set up under this ID, or
	// the path leads to a network namespace other than the recorded one.
	ErrDifferent = errors.New("the allocation is set up differently")
	// ErrExists: Allocation.MustBeNew is set, and an allocation is set up under this ID,
	// or its record cannot be read. Nothing was checked or changed.
	ErrExists = errors.New("allocation exists already")
	// ErrNotFound: no allocation is set up under this ID.
	ErrNotFound = errors.New("allocation not found")
	// ErrUnknownNetwork: no valid network configuration has this name.
	ErrUnknownNetwork = errors.New("unknown network")
	// ErrUnserved: the allocation requests capabilities that no plugin of its
	// networks declares. errors.As finds an *UnservedError that names them.
	ErrUnserved = errors.New("no plugin declares a requested capability")
	// ErrPluginNotInstalled: the binary of a plugin was not found.
	ErrPluginNotInstalled = errors.New("plugin not installed")
	// ErrInvalidResult: the plugins returned an inconsistent CNI result.
	ErrInvalidResult = errors.New("invalid CNI result")
	// ErrNoPort: all host ports that could be picked are in use.
	ErrNoPort = errors.New("no host port is free")
	// ErrNoAddress: the networks assigned no address, and the allocation requires one;
	// see Allocation.RequireAddress.
	ErrNoAddress = errors.New("no interface has an address")
	// ErrInUse: the network namespace belongs to another allocation, or already has an
	// interface with the requested name. In the first case, errors.As finds a
	// *NetnsError.
	ErrInUse = errors.New("network namespace is in use")
	// ErrUnprivileged: the process lacks a capability (capabilities(7)) that it needs to
	// change networks. Nothing was changed. errors.Is also finds fs.ErrPermission.
	ErrUnprivileged error = unprivileged{}
	// ErrExhausted: a network has no free address left.
	ErrExhausted = errors.New("no IP addresses available")
	// ErrAddressUnavailable: another attachment has a requested address, or one that the IPAM plugin
	// assigned; or the network does not lease a requested one.
	ErrAddressUnavailable = errors.New("a requested address is not available")
	// ErrSubnetTaken: the host would lose an address, a next hop or a network that it has in the subnet of a
	// network. Nothing was changed. errors.As finds a *SubnetError.
	ErrSubnetTaken = errors.New("the subnet of the network is taken")
	// ErrBridgeFull: the bridge has 1023 ports, the maximum in the kernel.
	ErrBridgeFull = errors.New("the bridge is full: it has 1023 ports, the most that the kernel allows; use another network, or ptp, which has no such limit")
	// ErrLimit: a limit of the host or of the process is reached. The text names the sysctl that sets it,
	// or errors.Is finds EMFILE, ENFILE, ENOMEM or ENOBUFS, for file descriptors and memory.
	ErrLimit = errors.New("a limit of the host is reached")
	// ErrPortTaken: the kernel already forwards a host port to an attachment that has no
	// record in the state directory. errors.As finds a *PortTakenError.
	ErrPortTaken = errors.New("host port is taken")
	// ErrListener: a process of the host listens on a requested host port, and
	// Config.Listeners is ListenerRefuse. Nothing was changed. errors.As finds a
	// *ListenerError.
	ErrListener = errors.New("a process of the host listens on the host port")
	// ErrRevision: the allocation was changed since the revision on which a Change is based.
	// Nothing was changed. errors.As finds a *RevisionError.
	ErrRevision = errors.New("the allocation was changed meanwhile")
	// ErrCannotUpdate: what Update, Attach or Detach request cannot be changed while the
	// allocation is set up, for example because a plugin of its network runs as a binary or
	// has rules outside of allocnet's tables. Nothing was changed.
	ErrCannotUpdate = errors.New("it cannot be changed while the allocation is set up")
	// ErrSetUp: the operation is not permitted while the allocation is set up.
	ErrSetUp = errors.New("allocation is set up")
	// ErrUnhealthy: CHECK found that the network differs from the result of ADD.
	ErrUnhealthy = errors.New("network is not as it was set up")
	// ErrNotChecked: CHECK could not be completed, so the state of the network is not
	// known. The network was not changed.
	ErrNotChecked = errors.New("network could not be checked")
	// ErrIncomplete: leftovers of the allocation may still be on the host. Its record is
	// kept, so that a later Teardown or GC can remove them.
	ErrIncomplete = errors.New("not everything could be removed; the record is kept")
	// ErrStateDir: the state directory cannot be used: other users can write to it, it
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

// LeftoverError lists the objects of an allocation that could not be removed from the
// host.
type LeftoverError struct {
	ID        string
	Leftovers []Leftover
}

// Error implements error.
func (e *LeftoverError) Error() string {
	parts := make([]string, len(e.Leftovers))
	for i, l := range e.Leftovers {
		parts[i] = l.String()
	}
	return fmt.Sprintf("allocation %q left on the host: %s", e.ID, strings.Join(parts, "; "))
}

// UnservedError lists the requested capabilities that no plugin of the allocation's
// networks declares. Nothing was changed. errors.Is finds ErrUnserved.
type UnservedError struct {
	ID           string
	Capabilities []string // sorted; names as in the CNI conventions
	Networks     []string // of the allocation, in order
}

// Error implements error.
func (e *UnservedError) Error() string {
	networks := make([]string, len(e.Networks))
	for i, name := range e.Networks {
		networks[i] = fmt.Sprintf("%q", name)
	}
	step := `add a plugin that declares it under "capabilities", omit the request, or allow unserved requests`
	if slices.Contains(e.Capabilities, "policy") { // which is never allowed without a plugin
		step = "add the plugin policy, or omit the policy"
	}
	return fmt.Sprintf("allocation %q: no plugin of network %s declares %s; %s",
		e.ID, strings.Join(networks, ", "), strings.Join(e.Capabilities, ", "), step)
}

// Unwrap returns ErrUnserved.
func (e *UnservedError) Unwrap() error { return ErrUnserved }

// ListenerError reports a host port that Setup does not publish because a process of the
// host listens on it. errors.Is finds ErrListener.
type ListenerError struct {
	ID      string          // of the allocation
	Mapping portmap.Mapping // the refused mapping
	Address string          // address and port on which the process listens
	UID     uint32          // of the process
	// PID and Process are the ID and the name of a process that has the socket open. They
	// are 0 and "" if it is not known.
	PID     int
	Process string
}

// Error implements error.
func (e *ListenerError) Error() string {
	process, next := "a process of the host", "choose another host port or end that process"
	if e.PID != 0 {
		process = fmt.Sprintf("process %d (%q)", e.PID, e.Process)
	}
	if e.Process == "conmon" { // its end would leave its container without a monitor
		next = "choose another host port: a container runtime reserves this one for another container"
	}
	return fmt.Sprintf("publish host port %s of allocation %q: %s of user %d listens on %s; %s",
		e.Mapping.Published(), e.ID, process, e.UID, e.Address, next)
}

// Unwrap returns ErrListener.
func (e *ListenerError) Unwrap() error { return ErrListener }

// SubnetError reports that the host has something in the subnet of a network that it would lose if it
// were connected to the network. errors.Is finds ErrSubnetTaken.
type SubnetError struct {
	Network string
	File    string // of the network; "" if it is not known, and for the embedded network
	Subnet  netip.Prefix
	Taken   string // what the host has: "address 10.202.0.7/16 of eth0"
}

// Error implements error.
func (e *SubnetError) Error() string {
	place := cmp.Or(e.File, "its configuration")
	if e.File == "" && e.Network == "allocnet" {
		place = "--subnet, the setting subnets or Config.Subnets"
	}
	return fmt.Sprintf("network %q: its subnet %s holds %s, which the host would lose; choose another subnet in %s", e.Network, e.Subnet, e.Taken, place)
}

// Unwrap returns ErrSubnetTaken.
func (e *SubnetError) Unwrap() error { return ErrSubnetTaken }

// NetworkError reports that a file of the configuration directory was skipped. Err is the
// reason.
type NetworkError struct {
	File string
	Err  error
}

// Error implements error.
func (e *NetworkError) Error() string { return e.File + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *NetworkError) Unwrap() error { return e.Err }

// NetnsError reports that a network namespace belongs to another allocation.
// errors.Is finds ErrInUse.
type NetnsError struct {
	Netns   string
	ID      string // of the allocation that requests it; "" if there is none
	OtherID string // of the allocation that owns it
}

// Error implements error.
func (e *NetnsError) Error() string {
	return fmt.Sprintf("%v: %q belongs to allocation %q", ErrInUse, e.Netns, e.OtherID)
}

// Unwrap returns ErrInUse.
func (e *NetnsError) Unwrap() error { return ErrInUse }

// AllocationError is the error of one allocation among those that GC, Repair and Recover
// join.
type AllocationError struct {
	ID  string
	Err error
}

// Error returns the text of Err, preceded by the name of the allocation unless it contains
// it already.
func (e *AllocationError) Error() string {
	text, name := e.Err.Error(), fmt.Sprintf("allocation %q", e.ID)
	if strings.Contains(text, name) {
		return text
	}
	return name + ": " + text
}

// Unwrap returns the error of the allocation.
func (e *AllocationError) Unwrap() error { return e.Err }

// RecordError reports a record that cannot be read. errors.Is finds ErrNewer if a newer
// version of allocnet wrote it.
type RecordError struct {
	ID   string // of the allocation
	File string
	Err  error
}

// Error implements error.
func (e *RecordError) Error() string {
	return fmt.Sprintf("record of allocation %q in %s: %v", e.ID, e.File, e.Err)
}

// Unwrap returns the reason.
func (e *RecordError) Unwrap() error { return e.Err }

// StateDirError reports a state directory that cannot be used. errors.Is finds ErrStateDir
// and the error of the system.
type StateDirError struct {
	Dir string
	Err error
}

// Error returns the text of Err, which names the file or directory.
func (e *StateDirError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *StateDirError) Unwrap() error { return e.Err }

// Is reports whether target is ErrStateDir.
func (e *StateDirError) Is(target error) bool { return target == ErrStateDir }

// PortTakenError reports a host port that the kernel already forwards to an attachment
// without a record in the state directory. errors.Is finds ErrPortTaken.
type PortTakenError struct {
	Mapping portmap.Mapping // the refused mapping
	To      netip.AddrPort  // its requested destination
	// Network, ID and Interface identify the attachment that has the port. Instance
	// identifies the state directory of its record. All are "" if allocnet did not
	// publish the port. A name that is too long for the kernel is replaced by its hash,
	// which begins with '#'.
	Network, ID, Interface, Instance string
}

// Error implements error.
func (e *PortTakenError) Error() string {
	text := "an unknown owner"
	if owner := (names.Owner{Network: e.Network, ID: e.ID, IfName: e.Interface, Instance: e.Instance}); owner != (names.Owner{}) {
		text = owner.String()
	}
	return fmt.Sprintf("host port %s is taken by %s", e.Mapping.Published(), text)
}

// Is reports whether target is ErrPortTaken.
func (e *PortTakenError) Is(target error) bool { return target == ErrPortTaken }
