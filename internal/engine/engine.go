// Package engine defines the interface between the configurator, which manages
// allocations and records, and the engines, which run chains of CNI plugins.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/sandbox"
)

// Engine runs the plugins of networks. It keeps nothing between two calls, is
// safe for concurrent use, and returns no later than shortly after the deadline
// of the context. The caller sees to it that no two operations run at once for
// one allocation, and that GC runs alone.
type Engine interface {
	// Add attaches the sandbox to every network of the request, in order, and
	// returns a result for each. After an error the results that became known
	// are returned with it, nil for the others, and the caller calls Del.
	Add(ctx context.Context, r *Request) ([]*types100.Result, error)
	// Check runs CHECK on every network. ErrCheckUnsupported is found by
	// errors.Is where a configuration is too old for it.
	Check(ctx context.Context, r *Request) error
	// Del detaches from every network, last one first, tries every plugin and
	// joins the errors.
	Del(ctx context.Context, r *Request) error
	// Status asks the plugins of a network whether they can serve an ADD.
	Status(ctx context.Context, dirs []string, n *conflist.Network) error
	// Binaries are the types of a network's plugins, IPAM included, that this
	// engine runs as binaries.
	Binaries(n *conflist.Network) []string
	// GC tells the plugins of a network which attachments still exist.
	GC(ctx context.Context, dirs []string, n *conflist.Network, valid []types.GCAttachment) error
}

// Request is one allocation as the plugins are to see it.
type Request struct {
	ID, Netns string // ID is the CNI_CONTAINERID
	// Sandbox is the namespace, open until the operation ends, which Netns need not
	// lead to any more; nil where Netns is to be opened.
	Sandbox *sandbox.Sandbox
	// Instance is that of the owner of what plugins make, see names.Owner; nil for
	// the engine's own.
	Instance *string
	// Args are the CNI_ARGS in their order.
	Args [][2]string
	// Capabilities are the capability arguments by name.
	Capabilities map[string]json.RawMessage
	// Interrupted says that an earlier operation may have died halfway, and
	// plugins that it started may still be at work.
	Interrupted bool
	// PluginDirs are searched for the plugins, in order.
	PluginDirs []string
	// Tag is the process tag: the last entry of the plugins' CNI_PATH, a path
	// that does not exist. It distinguishes the processes of this host and
	// state directory from all others with the same ID. See ProcessTag.
	Tag string
	// InterfacePrefix and the index of an attachment make its IfName, where it
	// does not name one.
	InterfacePrefix string
	Attachments     []Attachment
}

// Attachment is one network of a request.
type Attachment struct {
	Network *conflist.Network
	// IfName is the name of the interface in the sandbox; "" for the prefix and
	// the index.
	IfName string
	// Loopback says that the network is the loopback interface, which is there
	// before ADD.
	Loopback bool
	// Previous is the result that the first plugin goes on from; nil for none.
	Previous *types100.Result
	// Binaries are the types of the plugins that ADD ran as binaries, where the
	// engine ran others itself; nil where that is not known.
	Binaries []string
	// Result is what ADD returned; nil where it is not known.
	Result *types100.Result
}

var (
	// ErrCheckUnsupported: the cniVersion of a network is older than CHECK.
	ErrCheckUnsupported = errors.New("network configuration is too old for CHECK")
	// ErrInUse: the sandbox has an interface already where ADD would make one.
	// Nothing was done.
	ErrInUse = allocnet.ErrInUse
	// ErrNothingDone: ADD ended before it ran a plugin or changed anything, so that
	// there is nothing for DEL to remove.
	ErrNothingDone = errors.New("no plugin was run")
	// ErrInvalidResult: a plugin returned a result that contradicts itself.
	ErrInvalidResult = allocnet.ErrInvalidResult
)

// ProcessTag returns the process tag for a state directory's key: see package
// statedir. It includes the host's network namespace, because another host in
// its own namespace may have its state at the same path. No file can exist at
// this path.
func ProcessTag(key string) string {
	host, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		host = "unknown"
	}
	// A colon would end the entry.
	host = strings.NewReplacer(":", "", "[", "", "]", "").Replace(host)
	return filepath.Join("/proc/self/allocnet", key, host)
}

// NoCache is a cache directory for libcni that is always empty, because it
// cannot be created. Operations that write nothing to the cache may use it.
const NoCache = "/proc/self/no-cache"

// ForBinaries is the request for plugin binaries. Its Netns is a path that leads to
// the open Sandbox, even if Netns is replaced while the request runs.
func (r *Request) ForBinaries() *Request {
	if r.Sandbox == nil {
		return r
	}
	inside := *r
	inside.Netns = r.Sandbox.ProcPath()
	inside.Attachments = slices.Clone(r.Attachments)
	for i := range inside.Attachments {
		a := &inside.Attachments[i]
		a.Previous = pluginexec.InNetns(a.Previous, r.Netns, inside.Netns)
		a.Result = pluginexec.InNetns(a.Result, r.Netns, inside.Netns)
	}
	return &inside
}

// Hold keeps the path of ForBinaries valid until act returns, even if the caller
// stops waiting and closes the Sandbox.
func (r *Request) Hold(act func() error) error {
	if r.Sandbox == nil {
		return act()
	}
	return r.Sandbox.With(func(int) error { return act() })
}

// Path are the entries of the request's CNI_PATH.
func (r *Request) Path() []string {
	if r.Tag == "" {
		return r.PluginDirs
	}
	return append(slices.Clone(r.PluginDirs), r.Tag)
}

// Work identifies the processes of the request's plugins.
func (r *Request) Work() pluginexec.Work { return pluginexec.Work{ID: r.ID, Tag: r.Tag} }

// IfName is the name of the interface of attachment i.
func (r *Request) IfName(i int) string {
	if name := r.Attachments[i].IfName; name != "" {
		return name
	}
	return fmt.Sprintf("%s%d", r.InterfacePrefix, i)
}

// RuntimeConf is the request as libcni wants it for attachment i.
func (r *Request) RuntimeConf(i int) *libcni.RuntimeConf {
	c := &libcni.RuntimeConf{
		ContainerID: r.ID, NetNS: r.Netns, IfName: r.IfName(i), Args: r.Args,
		CapabilityArgs: make(map[string]any, len(r.Capabilities)),
	}
	for name, value := range r.Capabilities {
		c.CapabilityArgs[name] = value
	}
	return c
}
