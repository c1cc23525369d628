// Package client speaks to allocnetd, the daemon that gives allocations their
// networks on behalf of a whole host, over its unix socket.
//
// A [Client] is an allocnet.Service, as a *configurator.Configurator is, and returns the
// same errors: errors.Is finds the sentinels of package allocnet, errors.As the
// *types.Error of a plugin with its code, *portmap.ConflictError and the others. So a
// program can use the daemon where it runs, and a configurator of its own elsewhere:
//
//	status, err := client.New(client.Config{}).Setup(ctx, alloc)
//	if errors.Is(err, client.ErrUnavailable) {
//		status, err = local.Setup(ctx, alloc)
//	}
//
// # Caveats
//
// When the context of a call ends, the daemon cancels the operation and undoes what
// it had done; the call does not wait for that. An answer that is on its way by then
// is lost, and what it tells of stays. A deadline is told to the daemon beforehand, so
// that it can answer in time with what became of the operation.
//
// A call that breaks off because the daemon died has an error that is not
// ErrUnavailable. So does one whose answer is not that of its operation: whether
// anything was done is not known then. All operations are idempotent: call again.
package client
