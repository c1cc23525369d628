// Package sandbox creates, opens and destroys named network namespaces, one for each allocation.
//
// A sandbox is a file on which its namespace is mounted, which keeps the namespace alive without any process in
// it. The form is that of iproute2, so that "ip netns list" and "ip netns exec" work on sandboxes, and this
// package on what "ip netns add" made.
//
//	s, err := sandbox.Create("alloc-1")
//	if err != nil {
//		return err
//	}
//	defer s.Destroy()
//	err = s.Do(func() error { return configure() })
//
// A program that creates many sandboxes uses a pool of prepared namespaces, which only have to be named:
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
// A thread is in a namespace, not a process or a goroutine: what [Sandbox.Do] runs must not hand work to other
// goroutines and expect it to be done inside. A socket or a netlink handle that was opened inside stays inside,
// and may be used from anywhere.
//
// All functions need CAP_SYS_ADMIN in the user namespace, and are safe for concurrent use, also by several
// processes.
package sandbox
