package cniservice

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/allocnet/allocnet/internal/names"
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
func (c *call) own() (known bool, err error) {
	r, err := c.backend.Get(c.id())
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
func (c *call) renamed() bool {
	r, err := c.backend.Get(c.id())
	return err == nil && strings.HasPrefix(r.Scope, scopes) && (c.env.Netns == "" || sameNetns(c.env.Netns, r.Netns))
}

// sameNetns compares paths, and what they lead to. Those that are gone are not told
// apart: nobody lives there any more.
func sameNetns(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	first, errA := os.Stat(a)
	second, errB := os.Stat(b)
	if errA == nil && errB == nil {
		return os.SameFile(first, second)
	}
	return errors.Is(errA, fs.ErrNotExist) && errors.Is(errB, fs.ErrNotExist)
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
