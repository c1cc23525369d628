package sdk

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// CmdArgs are the arguments of one command for one attachment, which the CNI
// specification passes in the environment and on stdin. For STATUS and GC only
// Path and Conf are set. An Exec sets the host and the instance.
type CmdArgs struct {
	ContainerID, Netns, IfName string
	// Args is CNI_ARGS.
	Args string
	// Path is CNI_PATH.
	Path []string
	// Conf is the plugin's configuration.
	Conf *PluginConf
	// Runtime replaces the runtimeConfig of the configuration. If it is nil, the
	// configuration is not changed.
	Runtime map[string]json.RawMessage
	// PrevResult is the result of the previous plugin, or of ADD. It is nil if
	// there is none or if the configuration contains it. An ADD may change it
	// and return it.
	PrevResult *types100.Result
	// Valid are the attachments that GC keeps. An Exec reads them from the
	// configuration.
	Valid []types.GCAttachment
	// Secondary is for an ADD of a container that the allocation has attached to another
	// network before: where both have a route to the same destination, as the default
	// routes, that of the earlier network stays in use.
	Secondary bool
	// Several reports that the allocation has more networks than this one. Then it may send
	// from the addresses of all of them over a bridge, and receive on them.
	Several bool
	// Restoring asks Wanted for what the host had for the attachment. What it is to get instead, by a
	// change that was not made yet, is left to Repair.
	Restoring bool
	// WaitForPorts lets host ports wait while an older allocation has them, in place of an error.
	WaitForPorts bool
	// PortOrder is the place of the allocation among those that have requested one of its host ports,
	// from 1; 0 if it is not known: see ruleset.Elements.Order.
	PortOrder int
	// Later is for CHECK and Repair: what the plugins after this one do with the container's interface. It is nil
	// if that is not known, because they are not, or because one of them runs as a binary.
	Later *Later
	// Binaries are the types of the plugins that ADD ran as binaries; nil if
	// that is not known. DEL runs these binaries in addition to the native
	// plugins of the same types.
	Binaries []string
	// Link is shared by the plugins of a chain whose ADD ends with the group of a link; nil
	// stands for the other chains.
	Link *PendingLink
	// Additions collects the elements that ADD adds; nil adds them at once.
	Additions *Additions
	// Removals collects what Disconnect removes; nil removes it at once.
	Removals *Removals
	// LastUse is where an IPAM plugin whose ADD another plugin delegates stores when the addresses of its result were in
	// use before, in their order: see lease.Request. It leaves LastUse empty if it does not know. nil if the other
	// plugin does not ask.
	LastUse *[]time.Time
	// Unchanged is for a Binder: no other program has changed the rules, nor the links
	// of the result, since its ADD.
	Unchanged bool

	// Instance is the owner's instance: see names.Owner.
	Instance string
	Host     *Host

	exec *Exec
}

// CmdArgsOf returns the command and its arguments from an environment, as the
// specification defines them.
func CmdArgsOf(environ []string, conf []byte) (command string, a *CmdArgs) {
	a = &CmdArgs{Conf: &PluginConf{Text: conf}}
	for _, kv := range environ {
		key, value, _ := strings.Cut(kv, "=")
		switch key {
		case "CNI_COMMAND":
			command = value
		case "CNI_CONTAINERID":
			a.ContainerID = value
		case "CNI_NETNS":
			a.Netns = value
		case "CNI_IFNAME":
			a.IfName = value
		case "CNI_ARGS":
			a.Args = value
		case "CNI_PATH":
			a.Path = filepath.SplitList(value)
		}
	}
	return command, a
}

// environ returns the environment of the process with the variables of the
// arguments replaced.
func (a *CmdArgs) environ(command string) []string {
	own := []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + a.ContainerID, "CNI_NETNS=" + a.Netns,
		"CNI_ARGS=" + a.Args, "CNI_IFNAME=" + a.IfName, "CNI_PATH=" + strings.Join(a.Path, string(os.PathListSeparator)),
	}
	return replaceEnv(os.Environ(), own...)
}

// replaceEnv returns an environment in which each variable of own occurs once.
func replaceEnv(env []string, own ...string) []string {
	replaced := make([]string, 0, len(env)+len(own))
	for _, kv := range env {
		if !hasVariable(own, kv) {
			replaced = append(replaced, kv)
		}
	}
	return append(replaced, own...)
}

func hasVariable(env []string, like string) bool {
	name, _, _ := strings.Cut(like, "=")
	for _, kv := range env {
		if n, _, _ := strings.Cut(kv, "="); n == name {
			return true
		}
	}
	return false
}

// validateNames validates the arguments that plugins use in names and paths.
func (a *CmdArgs) validateNames() error {
	if a.ContainerID == "" { // required elsewhere, where it is
		return nil
	}
	if err := names.ValidateContainer(a.ContainerID); err != nil {
		return err
	}
	return names.ValidateInterface(a.IfName)
}

// Owner returns the owner that identifies the attachment in the kernel.
func (a *CmdArgs) Owner(network string) names.Owner {
	return names.Owner{Network: network, ID: a.ContainerID, IfName: a.IfName, Instance: a.Instance}
}

// DropIn reports whether the plugin runs as a plugin binary, or for a runtime in place of one, so that there
// is no record of the attachment.
func (a *CmdArgs) DropIn() bool { return a.exec != nil && a.exec.Lenient }

// Sandbox returns rtnetlink in the network namespace of the attachment. The
// Exec opens it once for all plugins of an operation and closes it.
func (a *CmdArgs) Sandbox() (*rtnl.Sandbox, error) { return a.exec.Sandbox(a.Netns) }

// Delegate runs another plugin, an IPAM plugin, with the configuration of the
// calling plugin, as the specification defines it. The caller owns the result,
// which is nil for all commands but ADD.
func (a *CmdArgs) Delegate(ctx context.Context, command, name string) (*types100.Result, error) {
	result, err := a.exec.Run(ctx, name, command, a)
	if err != nil || result == nil {
		return nil, err
	}
	return copyResult(result), nil
}

// DelegateTo is Delegate with another configuration, which is complete, for a plugin
// that is not an IPAM plugin. The result of the plugin before it, or of ADD, may be nil.
func (a *CmdArgs) DelegateTo(ctx context.Context, command, name string, conf *PluginConf, previous *types100.Result) (*types100.Result, error) {
	to := *a
	to.Conf, to.PrevResult = conf, previous
	to.Runtime, to.Binaries = nil, nil
	return a.exec.Run(ctx, name, command, &to)
}

// InProcess reports whether Delegate runs a plugin in-process.
func (a *CmdArgs) InProcess(name string) bool {
	_, ok := a.exec.Plugins[name]
	return ok
}

// copyResult returns a deep copy of a result, which shares nothing with a
// cached configuration.
func copyResult(r *types100.Result) *types100.Result {
	copied := &types100.Result{CNIVersion: r.CNIVersion, DNS: *r.DNS.Copy()}
	for _, i := range r.Interfaces {
		copied.Interfaces = append(copied.Interfaces, i.Copy())
	}
	for _, i := range r.IPs {
		copied.IPs = append(copied.IPs, i.Copy())
	}
	for _, route := range r.Routes {
		copied.Routes = append(copied.Routes, route.Copy())
	}
	return copied
}

// Previous returns the prevResult in the newest CNI version; nil if there is
// none. Only an ADD may change it.
func (a *CmdArgs) Previous(common *Common) (*types100.Result, error) {
	if a.PrevResult != nil {
		return a.PrevResult, nil
	}
	return common.previous()
}

// PreviousOfDel is Previous for DEL, which also works without a result. It
// returns nil if the result cannot be read, or does not tell what ADD has made.
func (a *CmdArgs) PreviousOfDel(common *Common) *types100.Result {
	previous, err := a.Previous(common)
	if err == nil && previous != nil {
		err = wellFormed(previous)
	}
	if err != nil {
		a.Host.Log.Warn("DEL continues without prevResult", "container", a.ContainerID, "because", err)
		return nil
	}
	if previous != nil && len(previous.Interfaces)+len(previous.IPs) == 0 {
		return nil // a result of ADD has either
	}
	return previous
}
