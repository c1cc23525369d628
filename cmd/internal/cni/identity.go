package cni

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/sandbox"
)

// idOf is the ID of the allocation that an attachment is: CONTAINER.INTERFACE. Where
// that would be too long, could be read in two ways, or holds what no ID may, it is the
// beginning of the container's ID and a hash. That is longer behind its last dot than
// any interface's name, so that neither form is the other of another attachment.
func idOf(container, ifName string) string {
	id := container + "." + ifName
	if len(id) <= names.MaxID && !strings.Contains(ifName, ".") && names.ValidateContainer(id) == nil {
		return id
	}
	const shown = 32
	sum := sha256.Sum256([]byte(container + "/" + ifName))
	return container[:min(len(container), shown)] + "-" + hex.EncodeToString(sum[:16])
}

// scopes are those of the attachments of runtimes. No network is called as a scope
// that a configuration names itself: that has a slash more.
const (
	scopes      = "cni/"
	namedScopes = "cni//"
)

// IsRuntimes reports whether a scope is that of attachments of runtimes.
func IsRuntimes(scope string) bool { return strings.HasPrefix(scope, scopes) }

// scope is that of the attachments of a configuration.
func (h *head) scope() string {
	if h.Scope != "" {
		return namedScopes + h.Scope
	}
	return scopes + h.Name
}

// own reports whether the call's attachment has a record. The error is errForeign
// where somebody else has an allocation under its ID. A record that cannot be read is
// for the backend to judge.
func (c *call) own(ctx context.Context) (known bool, err error) {
	r, err := c.backend.Get(ctx, c.id())
	switch {
	case err != nil:
		return false, nil
	case r.Scope != c.head.scope():
		return false, fmt.Errorf("%w: %q is %s", errForeign, r.ID, describe(r.Scope))
	}
	return true, nil
}

// renamed reports whether the record of somebody else is that of the call's attachment
// all the same, made when the network had another name: it is a runtime's, and about
// the same network namespace, as far as there is one.
func (c *call) renamed(ctx context.Context) bool {
	r, err := c.backend.Get(ctx, c.id())
	return err == nil && IsRuntimes(r.Scope) && (c.env.Netns == "" || leadsToNetns(c.env.Netns, r))
}

// leadsToNetns reports whether a path leads to the network namespace of a record.
// Namespaces that are gone are taken for the same one: DEL of them does the same work.
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

// isNone reports whether an error says that there is no network namespace at a path.
func isNone(err error) bool {
	return errors.Is(err, sandbox.ErrNotExist) || errors.Is(err, sandbox.ErrNotNamespace) || errors.Is(err, unix.ENOTDIR)
}

// errForeign: the allocation is of another network, or not a runtime's.
var errForeign = errors.New("the container's interface belongs to somebody else")

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
