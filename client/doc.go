// Package client calls allocnetd, the daemon that manages container networks on a host, over
// its unix socket.
//
// A [Client] has the methods of a *configurator.Configurator and returns the same errors:
// errors.Is finds the sentinels of package allocnet, errors.As finds the *types.Error of a
// plugin with its code, *portmap.ConflictError and the other types. A program can
// therefore use the daemon if it is running, and its own Configurator if it is not:
//
//	status, err := client.New(client.Config{}).Setup(ctx, alloc)
//	if errors.Is(err, client.ErrUnavailable) {
//		status, err = local.Setup(ctx, alloc)
//	}
//
// # Caveats
//
// When the context of a call ends, the call returns, and the daemon cancels the operation
// and rolls it back in the background. A response already in flight is discarded, but its
// effects remain. The client sends the deadline of the context with the request, so the
// daemon can finish the operation and respond before the deadline.
//
// A call whose context has no deadline may last as long as its operation. It ends with
// ErrNoAnswer if the daemon does not answer another request within some seconds.
//
// If the daemon dies during a call, the error is ErrNoAnswer. Then, or if its response is
// invalid, the result of the operation is not known. Setup, Teardown, Check,
// Repair, Recover and GC are idempotent: call again. Before an Update, Attach or Detach is
// repeated, Get shows whether it took effect.
package client
