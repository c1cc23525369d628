package sdk

import (
	"context"
	"encoding/json"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// Plugin is one CNI plugin with its configuration. The operations are those of
// the CNI specification; an error that is no *types.Error stands for code 999.
//
// Add returns the result in the newest version; whoever calls converts it. An
// Add that fails undoes what it did itself. Del is idempotent, succeeds without
// the namespace, and tries everything before it returns an error.
type Plugin interface {
	Add(context.Context, *CmdArgs) (*types100.Result, error)
	Check(context.Context, *CmdArgs) error
	Del(context.Context, *CmdArgs) error
	// Status says whether an Add can be served now: nil, or code 50 or 51.
	Status(context.Context, *CmdArgs) error
	// GC removes what belongs to the network of the configuration and to none of
	// its valid attachments.
	GC(context.Context, *CmdArgs) error
}

// Repairer is a plugin that can restore what another program removed from the
// host (rules, addresses of a bridge, sysctls), from the result of its ADD. It
// leaves the sandbox alone.
type Repairer interface {
	Repair(context.Context, *CmdArgs) error
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
