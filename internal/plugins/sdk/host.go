package sdk

import (
	"context"
	"errors"

	"github.com/allocnet/allocnet/internal/firewalld"
	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/netlink/conntrack"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// Host is what all plugins of one host share. It is safe for concurrent use.
type Host struct {
	Kernel *rtnl.Host
	Rules  *ruleset.Ruleset
	// Accept has iptables accept what Rules approved.
	Accept *iptables.AcceptRule
	// Firewalld runs or not; nil is one that does not.
	Firewalld *firewalld.Client
	// Conntrack forgets connections.
	Conntrack *conntrack.Conn
	// Lately is nil where a process does one thing only.
	Lately *Lately
	// Lasting says that the process goes on after an operation.
	Lasting bool
	Log     Logger
}

// OpenHost opens the host that the process lives in.
func OpenHost(log Logger) (*Host, error) {
	h := &Host{Accept: iptables.NewAcceptRule(), Firewalld: firewalld.Shared, Conntrack: conntrack.New(), Log: log}
	var err error
	h.Kernel = rtnl.OpenHost()
	if h.Rules, err = ruleset.Open(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// GuardLoopback drops packets of other hosts and namespaces to and from the host's
// loopback. A process that goes on holds the guard until it ends, so that a flush of
// the ruleset does not remove it.
func (h *Host) GuardLoopback(ctx context.Context) error {
	err := h.Rules.Guard(ctx)
	if h.Lasting {
		err = errors.Join(err, h.Rules.HoldGuard(ctx))
	}
	return err
}

// Close gives back what OpenHost opened. No operation may be under way.
func (h *Host) Close() error {
	errs := []error{h.Accept.Close(), h.Conntrack.Close()}
	h.Kernel.Close()
	if h.Rules != nil {
		errs = append(errs, h.Rules.Close())
	}
	return errors.Join(errs...)
}
