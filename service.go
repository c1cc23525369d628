package allocnet

import "context"

// Service sets up, checks and removes the networks of allocations. It is implemented by
// *configurator.Configurator, which works in the calling process, and by *client.Client,
// which calls the daemon. The methods are documented there.
//
// All methods are safe for concurrent use. Operations on the same allocation run one
// after the other.
//
// Setup, Update, Attach, Detach, Check, CheckOnly, Teardown, TeardownGone, Audit and Force
// work on one allocation. GC, PlanGC, Repair and Recover work on all allocations. Their variants
// with a Scope work on the allocations of one scope.
type Service interface {
	Setup(ctx context.Context, a Allocation) (*Status, error)
	Update(ctx context.Context, id string, change Change) (*Status, error)
	Attach(ctx context.Context, id, network string, o AttachOptions) (*Status, error)
	Detach(ctx context.Context, id, interfaceName, revision string) (*Status, error)
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
	History(ctx context.Context, q HistoryQuery) ([]HistoryEntry, error)
	Ready(ctx context.Context) error
	ReadyFor(ctx context.Context, a Allocation) error

	// Close releases the resources of the Service. Call it when no operation is
	// running any more. It does not change any allocation.
	Close() error
}
