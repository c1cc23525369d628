package allocnet

import "context"

// Service gives allocations their networks and removes them again. A
// *configurator.Configurator does so in this process, a *client.Client through the
// daemon; their documentation says more about each method. All methods are safe for
// concurrent use, and operations on one allocation run one after the other.
//
// Setup, Check, Teardown, Audit, Force and TeardownGone are about one allocation;
// GC, Repair and Recover about all, or, with the name Scope, about those of one scope.
type Service interface {
	Setup(ctx context.Context, a Allocation) (*Status, error)
	Check(ctx context.Context, a Allocation) error
	CheckOnly(ctx context.Context, a Allocation) error
	Teardown(ctx context.Context, a Allocation) error
	TeardownGone(ctx context.Context, id string) (gone bool, err error)
	Audit(ctx context.Context, a Allocation) ([]Leftover, error)
	Force(ctx context.Context, a Allocation) ([]Leftover, error)

	GC(ctx context.Context, live []string) (*GCReport, error)
	GCScope(ctx context.Context, s Scope) (*GCReport, error)
	PlanGC(ctx context.Context, s Scope) (*GCReport, error)
	Repair(ctx context.Context) (*RepairReport, error)
	RepairScope(ctx context.Context, s Scope) (*RepairReport, error)
	Recover(ctx context.Context) (*RecoverReport, error)
	RecoverScope(ctx context.Context, s Scope) (*RecoverReport, error)

	List(ctx context.Context) ([]Record, error)
	Get(ctx context.Context, id string) (*Record, error)
	Networks(ctx context.Context) ([]Network, []*NetworkError)
	Ready(ctx context.Context) error
	ReadyFor(ctx context.Context, a Allocation) error

	// Close gives back what the Service holds open: call it when no operation runs any
	// more. No allocation is changed.
	Close() error
}
