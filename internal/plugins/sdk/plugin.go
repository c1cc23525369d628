package sdk

import (
	"context"
	"encoding/json"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// Plugin is one CNI plugin with its configuration. The operations are those of
// the CNI specification; an error that is no *types.Error stands for code 999.
//
// Add returns the result in the newest version; whoever calls converts it. An
// Add that fails undoes what it did itself. Del is idempotent, succeeds without
// the namespace, and tries everything before it returns an error.
type Plugin interface {
	Add(context.Context, *Call) (*types100.Result, error)
	Check(context.Context, *Call) error
	Del(context.Context, *Call) error
	// Status says whether an Add can be served now: nil, or code 50 or 51.
	Status(context.Context, *Call) error
	// GC removes what belongs to the network of the configuration and to none of
	// its valid attachments.
	GC(context.Context, *Call) error
}

// Repairer is a plugin that can put back what another program removed from the
// host (rules, addresses of a bridge, sysctls), from the result of its ADD. It
// leaves the sandbox alone.
type Repairer interface {
	Repair(context.Context, *Call) error
}

// Repair is the command that reaches a Repairer through an Exec. It is none of
// the specification's.
const Repair = "REPAIR"

// Factory reads a configuration. With an *UnknownKeyError it returns a plugin
// all the same, which ignores that key as the reference plugins do; with another
// error one for DEL alone if it can, from what could be read.
type Factory func(conf []byte) (Plugin, error)

// RuntimeConfigured is a plugin that can be given its runtimeConfig when the rest of
// its configuration has been read, once for all allocations. It returns another
// plugin, and is not changed.
type RuntimeConfigured interface {
	WithRuntime(map[string]json.RawMessage) (Plugin, error)
}

// Call is one operation on one attachment. For Status and GC only Path, Config
// and Host are set.
type Call struct {
	ContainerID, Netns, IfName string
	// Args is CNI_ARGS as it came.
	Args string
	// Path is CNI_PATH.
	Path []string
	// Config is the network configuration as it came on stdin, or without
	// runtimeConfig.
	Config []byte
	// Instance is the owner's: see names.Owner.
	Instance string
	Host     *Host

	exec *Exec
	// The environment comes as env or as args.
	env  []string
	args *Args
	// shared, runtime and binaries: see Invocation.
	shared   bool
	runtime  map[string]json.RawMessage
	binaries []string
	previous *types100.Result
	version  string
}

// validateNames validates what plugins make names and paths of.
func (c *Call) validateNames() error {
	if c.ContainerID == "" { // STATUS and GC
		return nil
	}
	if err := names.ValidateContainer(c.ContainerID); err != nil {
		return err
	}
	return names.ValidateInterface(c.IfName)
}

// Owner names the attachment in the kernel.
func (c *Call) Owner(network string) names.Owner {
	return names.Owner{Network: network, ID: c.ContainerID, IfName: c.IfName, Instance: c.Instance}
}

// Sandbox is rtnetlink in the namespace of the call. It is opened once for all
// plugins of an operation, and nobody but its opener closes it.
func (c *Call) Sandbox() (*rtnl.Sandbox, error) { return c.exec.Sandbox(c.Netns) }

// config is Config with the runtimeConfig.
func (c *Call) config() ([]byte, error) {
	if c.runtime == nil {
		return c.Config, nil
	}
	return WithKey(c.Config, "runtimeConfig", c.runtime)
}
