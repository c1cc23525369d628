package configurator

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/sandbox"
)

// errElsewhere: the path of a record leads to a namespace other than the recorded one.
var errElsewhere = errors.New("it leads to another network namespace than when the allocation was set up")

// errFormerBoot: the record was made in an earlier boot of the host.
var errFormerBoot = errors.New("the allocation was set up before the host was rebooted")

// openNetns opens the network namespace of a record for an operation, because the path may
// lead to another namespace at any time. It returns an error if the path does not lead to the
// recorded namespace. If the namespace is already open, release does nothing.
func openNetns(r *record.Record) (release func(), err error) {
	release, _, err = identifyNetns(r)
	return release, err
}

// identifyNetns is openNetns that also returns the identity of the namespace, or the zero value
// if the namespace is already open. Before Linux 6.18, the identity is read on a thread inside
// the namespace, so callers should read it only once.
func identifyNetns(r *record.Record) (release func(), id sandbox.Identity, err error) {
	release = func() {}
	if r.Sandbox != nil {
		return release, id, nil
	}
	if r.FormerBoot {
		return release, id, netnsError(fmt.Errorf("%q: %w", r.Netns, errFormerBoot))
	}
	open := sandbox.Open
	if r.NetnsOverride {
		open = sandbox.OpenAny
	}
	ns, err := open(r.Netns)
	if err != nil {
		return release, id, netnsError(err)
	}
	id, err = ns.Identity()
	if err == nil && r.Namespace != (sandbox.Identity{}) && !r.Namespace.Is(id) {
		err = fmt.Errorf("%q: %w", r.Netns, errElsewhere)
	}
	if err != nil {
		return release, id, netnsError(errors.Join(err, ns.Close()))
	}
	r.Sandbox = ns
	return func() {
		r.Sandbox = nil
		_ = ns.Close()
	}, id, nil
}

// bindNetns is openNetns of a new record. It opens the namespace at the path and records its
// identity.
func bindNetns(r *record.Record) (release func(), err error) {
	release, id, err := identifyNetns(r)
	if err != nil || r.Namespace != (sandbox.Identity{}) {
		return release, err
	}
	if r.Namespace = id; id == (sandbox.Identity{}) {
		r.Namespace, err = r.Sandbox.Identity()
	}
	return release, err
}

func netnsError(err error) error { return fmt.Errorf("%w: netns: %w", ErrInvalidAllocation, err) }

// requireInside returns an error if plugin binaries would run in the host's namespace: their
// leftovers there cannot be distinguished from objects of other programs.
func (c *Configurator) requireInside(p *plan) error {
	if !p.NetnsOverride || c.runsInProcess(p) {
		return nil
	}
	if err := sandbox.Validate(p.Netns); errors.Is(err, sandbox.ErrHostNamespace) {
		return fmt.Errorf("%w, in which only native plugins can be run", netnsError(err))
	}
	return nil
}

// isLost reports whether an error of openNetns means that the namespace is no longer at its
// path. Other errors mean that the path could not be examined. fs.ErrPermission means that a
// path in /proc leads to another process by now; ENXIO is the error of a socket.
func isLost(err error) bool {
	return isFault(err) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENXIO)
}

// isGone reports whether the namespace of a record is no longer at its path.
func isGone(other *record.Record) bool {
	release, err := openNetns(other)
	release()
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errElsewhere) || errors.Is(err, errFormerBoot)
}

// netnsGone reports whether the path of a record no longer leads to its namespace, by
// one system call, because a list calls it for thousands of records.
func netnsGone(r *record.Record) bool {
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
