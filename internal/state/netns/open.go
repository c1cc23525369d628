// Package netns opens, notes and destroys the network namespaces of allocations. A namespace is what
// it is, device and inode: a path may lead to another one at any time.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/exhausted"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/sandbox"
)

// ErrElsewhere: the path of a record leads to a namespace other than the recorded one.
var ErrElsewhere = errors.New("it leads to another network namespace than when the allocation was set up")

// ErrFormerBoot: the record was made in an earlier boot of the host.
var ErrFormerBoot = errors.New("the allocation was set up before the host was rebooted")

// Open opens the network namespace of a record for an operation, because the path may
// lead to another namespace at any time. It returns an error if the path does not lead to the
// recorded namespace: allocnet.ErrInvalidAllocation, or allocnet.ErrLimit if the process has no
// descriptor or memory left to look. If the namespace is already open, release does nothing.
func Open(r *record.Record) (release func(), err error) {
	release, _, err = identify(r)
	return release, err
}

// identify is Open that also returns the identity of the namespace, or the zero value
// if the namespace is already open. Before Linux 6.18, the identity is read on a thread inside
// the namespace, so callers should read it only once.
func identify(r *record.Record) (release func(), id sandbox.Identity, err error) {
	release = func() {}
	if r.Sandbox != nil {
		return release, id, nil
	}
	if r.FormerBoot {
		return release, id, invalid(fmt.Errorf("%q: %w", r.Netns, ErrFormerBoot))
	}
	open := sandbox.Open
	if r.NetnsOverride {
		open = sandbox.OpenAny
	}
	ns, err := open(r.Netns)
	if err != nil {
		return release, id, invalid(err)
	}
	id, err = ns.Identity()
	if err == nil && r.Namespace != (sandbox.Identity{}) && !r.Namespace.Is(id) {
		err = fmt.Errorf("%q: %w", r.Netns, ErrElsewhere)
	}
	if err != nil {
		return release, id, invalid(errors.Join(err, ns.Close()))
	}
	r.Sandbox = ns
	return func() {
		r.Sandbox = nil
		_ = ns.Close()
	}, id, nil
}

// Bind is Open of a new record. It opens the namespace at the path and records its
// identity.
func Bind(r *record.Record) (release func(), err error) {
	release, id, err := identify(r)
	if err != nil || r.Namespace != (sandbox.Identity{}) {
		return release, err
	}
	if r.Namespace = id; id == (sandbox.Identity{}) {
		r.Namespace, err = r.Sandbox.Identity()
	}
	return release, err
}

func invalid(err error) error {
	if exhausted.Is(err) {
		return fmt.Errorf("netns: %w", exhausted.Limit(err))
	}
	return fmt.Errorf("%w: netns: %w", allocnet.ErrInvalidAllocation, err)
}

// IsLost reports whether an error of Open means that the namespace is no longer at its
// path. Other errors mean that the path could not be examined. fs.ErrPermission means that a
// path in /proc leads to another process by now; ENXIO is the error of a socket.
func IsLost(err error) bool {
	return IsMissing(err) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENXIO)
}

// IsMissing reports whether an error means that a path leads to no network namespace, or to another
// one than that of the record.
func IsMissing(err error) bool {
	return slices.ContainsFunc([]error{
		fs.ErrNotExist, unix.ENOTDIR, sandbox.ErrNotNamespace, sandbox.ErrHostNamespace, ErrElsewhere, ErrFormerBoot,
	}, func(is error) bool { return errors.Is(err, is) })
}

// IsGone reports whether the namespace of a record is no longer at its path.
func IsGone(other *record.Record) bool {
	release, err := Open(other)
	release()
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrElsewhere) || errors.Is(err, ErrFormerBoot)
}

// Gone reports whether the path of a record no longer leads to its namespace, by
// one system call, because a list calls it for thousands of records.
func Gone(r *record.Record) bool {
	if r.Netns == "" || r.FormerBoot {
		return r.FormerBoot
	}
	var stat unix.Stat_t
	switch err := unix.Stat(r.Netns, &stat); {
	case err == unix.ENOENT, err == unix.ENOTDIR:
		return true
	case err != nil || r.Namespace == (sandbox.Identity{}):
		return false
	}
	return !r.Namespace.Is(sandbox.Identity{Device: stat.Dev, Inode: stat.Ino})
}
