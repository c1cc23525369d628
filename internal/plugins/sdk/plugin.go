package sdk

import (
	"context"
	"encoding/json"
	"errors"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// Plugin is a CNI plugin with its configuration. Its methods are the operations
// of the CNI specification; an error that is not a *types.Error has code 999.
//
// Add returns the result in the newest CNI version; the caller converts it. If
// Add fails, it has undone its own changes. Del is idempotent, succeeds without
// the network namespace, and tries every step before it returns an error.
type Plugin interface {
	Add(context.Context, *CmdArgs) (*types100.Result, error)
	Check(context.Context, *CmdArgs) error
	Del(context.Context, *CmdArgs) error
	// Status reports whether an Add can be served now: nil, or an error with
	// code 50 or 51.
	Status(context.Context, *CmdArgs) error
	// GC removes objects of the network that belong to none of the valid
	// attachments in the configuration.
	GC(context.Context, *CmdArgs) error
}

// Repairer is a plugin that can use the result of its ADD to restore what another
// program has removed or changed: of the host, such as rules, addresses of a bridge,
// sysctls, leases; and of the container's interface, unless it is not known what later
// plugins of the chain have made of that: see CmdArgs.Later. Source rules and accept_ra
// of the container it restores in any case.
type Repairer interface {
	Repair(context.Context, *CmdArgs) error
}

// Disconnecter is a plugin that can disconnect an attachment before DEL. DEL also deletes
// links, for which the kernel waits.
type Disconnecter interface {
	// Disconnect removes everything through which packets reach the attachment, and
	// everything that could be taken for that of another attachment: host ports,
	// elements, tracked connections. Links and addresses stay until DEL. If the plugin
	// cannot do that for the attachment, the error is ErrNeedsDel.
	Disconnect(context.Context, *CmdArgs) error
}

// ErrNeedsDel: an attachment cannot be disconnected before DEL.
var ErrNeedsDel = errors.New("only DEL can disconnect the attachment")

// Disconnect is the command that makes an Exec call a Disconnecter. The CNI
// specification does not define it.
const Disconnect = "DISCONNECT"

// Repair is the command that makes an Exec call a Repairer. The CNI
// specification does not define it.
const Repair = "REPAIR"

// Factory returns the plugin for a configuration. With an *UnknownKeyError it
// also returns a plugin, which ignores the unknown key as the reference plugins
// do. With any other error it may return a plugin for DEL alone, from the part
// of the configuration that could be read. An Exec makes the error Invalid.
type Factory func(conf []byte) (Plugin, error)

// RuntimeConfigured is a plugin whose configuration is read once for all
// allocations and that receives the runtimeConfig of an allocation separately.
// WithRuntime returns another plugin and does not change the receiver.
type RuntimeConfigured interface {
	WithRuntime(map[string]json.RawMessage) (Plugin, error)
}
