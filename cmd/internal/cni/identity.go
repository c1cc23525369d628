package cni

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/sandbox"
)

// idOf returns the ID of an attachment's allocation: CONTAINER.INTERFACE. If that would be
// too long, ambiguous or invalid, it is the beginning of the container's ID and a hash. The
// hash is longer than any name of an interface, so the two forms cannot be equal.
func idOf(container, ifName string) string {
	id := container + "." + ifName
	if len(id) <= names.MaxID && !strings.Contains(ifName, ".") && names.ValidateContainer(id) == nil {
		return id
	}
	const shown = 32
	sum := sha256.Sum256([]byte(container + "/" + ifName))
	return container[:min(len(container), shown)] + "-" + hex.EncodeToString(sum[:16])
}

// The prefixes of the scopes of runtimes' attachments. A scope that a configuration names
// has one slash more, so it differs from the scope of every network.
const (
	scopes      = "cni/"
	namedScopes = "cni//"
)

// IsRuntimes reports whether a scope belongs to attachments of runtimes.
func IsRuntimes(scope string) bool { return strings.HasPrefix(scope, scopes) }

// scope returns the scope of the attachments of a configuration.
func (h *head) scope() string {
	if h.Scope != "" {
		return namedScopes + h.Scope
	}
	return scopes + h.Name
}

// own reports whether the call's attachment has a record. The error is errForeign if the
// allocation under its ID belongs to another owner. Unreadable records are left to the
// backend.
func (c *call) own(ctx context.Context) (known bool, err error) {
	r, err := c.backend.Get(ctx, c.id())
	switch {
	case errors.Is(err, configurator.ErrNotFound), errors.As(err, new(*allocnet.RecordError)):
		return false, nil
	case err != nil: // it may belong to another owner
		return false, err
	case r.Scope != c.head.scope():
		return false, fmt.Errorf("%w: %q is %s", errForeign, r.ID, describe(r.Scope))
	}
	return true, nil
}

// renamed reports whether the record of another scope belongs to the call's attachment,
// because the network was renamed since: its scope is a runtime's and it has the same
// network namespace, if that exists.
func (c *call) renamed(ctx context.Context) bool {
	r, err := c.backend.Get(ctx, c.id())
	return err == nil && IsRuntimes(r.Scope) && (c.env.Netns == "" || leadsToNetns(c.env.Netns, r))
}

// leadsToNetns reports whether a path leads to the network namespace of a record. Missing
// network namespaces count as the same one, because DEL does the same for them.
func leadsToNetns(path string, r *configurator.Record) bool {
	there, err := identityAt(path)
	if r.NetnsGone || err != nil {
		return r.NetnsGone && isNone(err)
	}
	recorded, err := identityAt(r.Netns)
	return err == nil && there.Is(recorded)
}

func identityAt(path string) (id sandbox.Identity, err error) {
	s, err := sandbox.OpenAny(path)
	if err != nil {
		return id, err
	}
	id, err = s.Identity()
	return id, errors.Join(err, s.Close())
}

// isNone reports whether an error means that there is no network namespace at a path.
func isNone(err error) bool {
	return errors.Is(err, sandbox.ErrNotExist) || errors.Is(err, sandbox.ErrNotNamespace) || errors.Is(err, unix.ENOTDIR)
}

// errForeign is the error for an allocation of another network or another owner.
var errForeign = errors.New("the container's interface belongs to another program")

func describe(scope string) string {
	if name, ok := strings.CutPrefix(scope, namedScopes); ok {
		return fmt.Sprintf("an attachment of scope %q", name)
	}
	if network, ok := strings.CutPrefix(scope, scopes); ok {
		return fmt.Sprintf("an attachment to network %q", network)
	}
	return "an allocation that was not made through CNI"
}

func (c *call) id() string { return idOf(c.env.ContainerID, c.env.IfName) }
