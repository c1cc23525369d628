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

// Engine runs the plugins of networks. It keeps no state between calls, is safe for
// concurrent use, and returns shortly after the context ends. The caller ensures that
// only one operation at a time runs for an allocation, and that no other operation on
// the network runs during GC.
type Engine interface {
	// Add attaches the sandbox to every network of the request, in order, and returns a
	// result for each. With an error, it returns the results of the networks whose ADD
	// succeeded, nil for the others, and the caller calls Del.
	Add(ctx context.Context, r *Request) ([]*types100.Result, error)
	// Check runs CHECK of every network, also of those after one that cannot be checked.
	// It returns a *CheckError for the first plugin that reports an error, unless all of its findings
	// are Known. The error is ErrCheckUnsupported if a network could not be checked because its CNI
	// version has no CHECK, and nothing is wrong with the others.
	Check(ctx context.Context, r *Request) error
	// Del detaches the sandbox from every network, the last one first. It continues
	// after errors and joins them.
	Del(ctx context.Context, r *Request) error
	// Status returns an error if a plugin of the network reports that it is not ready
	// for ADD.
	Status(ctx context.Context, dirs []string, n *conflist.Network) error
	// Binaries returns the types of a network's plugins, including IPAM, that this
	// engine runs as binaries.
	Binaries(n *conflist.Network) []string
	// GC passes the existing attachments of a network to its plugins, which remove all
	// others. The caller adds the network to the error.
	GC(ctx context.Context, dirs []string, n *conflist.Network, valid []types.GCAttachment) error
}

// Request is an operation on one allocation.
type Request struct {
	ID, Netns string // ID is the CNI_CONTAINERID
	// Sandbox is the open network namespace. It stays open until the operation ends,
	// even if the path Netns leads elsewhere by then. If it is nil, the engine opens
	// Netns.
	Sandbox *sandbox.Sandbox
	// Instance is the instance in the owner of the objects that plugins create: see
	// names.Owner. nil selects that of the engine.
	Instance *string
	// Args are the CNI_ARGS in their order.
	Args [][2]string
	// Capabilities are the capability arguments by name.
	Capabilities map[string]json.RawMessage
	// WaitForPorts and PortOrder are those of the record; here the first allocation that has requested
	// a host port has 1, and 0 stands for one that is not known.
	WaitForPorts bool
	PortOrder    int
	// Interrupted reports that an earlier operation may have been interrupted, so that
	// its plugins may still be running.
	Interrupted bool
	// PluginDirs are searched for the plugins, in order.
	PluginDirs []string
	// Tag is the process tag: the last entry of the plugins' CNI_PATH, a path
	// that does not exist. It distinguishes the processes of this host and
	// state directory from all others with the same ID. See ProcessTag.
	Tag string
	// InterfacePrefix and the index of an attachment form its interface name, unless
	// the attachment has an IfName.
	InterfacePrefix string
	Attachments     []Attachment
	// More reports that the allocation is about to get another network.
	More bool
	// Others are the attachments of the allocation that the operation does not concern,
	// with their IfName and Result.
	Others []Attachment
}

// Attachment is one network of a request.
type Attachment struct {
	Network *conflist.Network
	// IfName is the name of the interface in the sandbox; "" selects the prefix and the
	// index.
	IfName string
	// Loopback reports that the network is the loopback interface, which exists before
	// ADD.
	Loopback bool
	// Attached reports that the plugins get CNI_ARGS without AddressArgs.
	Attached bool
	// Previous is the prevResult of the first plugin; nil if there is none.
	Previous *types100.Result
	// Binaries are the types of the plugins that the native engine ran as binaries for
	// ADD; nil if unknown.
	Binaries []string
	// Result is the result of ADD; nil if unknown.
	Result *types100.Result
	// Known are, by the index of the plugin, the findings that CHECK had right after ADD. CHECK does
	// not report them.
	Known map[int][]string
}

// AddressArgs are the keys of CNI_ARGS for the addresses and the MAC address of one interface.
var AddressArgs = []string{"IP", "GATEWAY", "MAC"}

var (
	// ErrCheckUnsupported: the cniVersion of a network is older than CHECK. All other
	// networks are healthy.
	ErrCheckUnsupported = errors.New("network configuration is too old for CHECK")
	// ErrInUse: the sandbox already has an interface with the requested name. Nothing
	// was changed.
	ErrInUse = allocnet.ErrInUse
	// ErrNothingDone: ADD failed before it ran a plugin or changed anything, so DEL has
	// nothing to remove.
	ErrNothingDone = errors.New("no plugin was run")
	// ErrInvalidResult: the result of a plugin is inconsistent.
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
	// Remove colons, which separate the entries of CNI_PATH.
	host = strings.NewReplacer(":", "", "[", "", "]", "").Replace(host)
	return filepath.Join("/proc/self/allocnet", key, host)
}

// NoCache is a cache directory for libcni that cannot be created and is therefore
// always empty. It is for operations that do not write to the cache.
const NoCache = "/proc/self/no-cache"

// ForBinaries returns the request for plugin binaries. Its Netns is a path of the open
// Sandbox, which stays valid even if the path Netns is replaced meanwhile.
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

// Path returns the entries of CNI_PATH: the directories of plugins, the instance for allocnet's plugin
// binaries, and the process tag.
func (r *Request) Path() []string {
	dirs := r.PluginDirs
	if r.Instance != nil {
		dirs = pluginexec.WithInstance(dirs, *r.Instance)
	}
	if r.Tag == "" {
		return dirs
	}
	return append(slices.Clone(dirs), r.Tag)
}

// Work identifies the processes of the request's plugins.
func (r *Request) Work() pluginexec.Work {
	w := pluginexec.Work{ID: r.ID, Tag: r.Tag}
	for i := range r.Attachments {
		w.IfNames = append(w.IfNames, r.IfName(i))
	}
	return w
}

// IfName returns the interface name of attachment i.
func (r *Request) IfName(i int) string {
	if name := r.Attachments[i].IfName; name != "" {
		return name
	}
	return fmt.Sprintf("%s%d", r.InterfacePrefix, i)
}

// RuntimeConf returns libcni's arguments for attachment i.
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
