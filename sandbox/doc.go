// Package sandbox creates, opens and destroys named network namespaces, one for each
// allocation.
//
// A sandbox is a network namespace that is mounted on a file. The mount keeps the
// namespace alive without a process in it. The layout is that of iproute2: "ip netns
// list" and "ip netns exec" work on sandboxes, and this package works on namespaces
// that "ip netns add" made.
//
//	s, err := sandbox.Create("alloc-1")
//	if err != nil {
//		return err
//	}
//	defer s.Destroy()
//	err = s.Do(func() error { return configure() })
//
// A program that creates many sandboxes can use a pool of prepared namespaces:
//
//	pool, err := sandbox.NewPool(sandbox.PoolOptions{Size: 16})
//	if err != nil {
//		return err
//	}
//	defer pool.Close()
//	s, err := pool.Take(ctx, "alloc-1")
//
// # Caveats
//
// A network namespace belongs to a thread, not to a process or a goroutine. A function
// that [Sandbox.Do] runs must not expect other goroutines to run in the sandbox. A
// socket or netlink handle that the function opens stays in the sandbox, and any
// goroutine may use it.
//
// All functions need CAP_SYS_ADMIN in the user namespace, and are safe for concurrent
// use, also by several processes.
package sandbox
