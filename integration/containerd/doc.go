// Package containerd tests allocnet with real runtimes: containerd and runc, with
// containerd's Go client, as examples/containerd uses it, and through CRI. Each test has
// its own containerd with a private root, state directory and socket. The images are made
// of busybox. "make runtimes" runs the tests.
package containerd
