// Package integration holds the tests of the library on a real kernel with the
// reference CNI plugins: setup, teardown, pools, repair, lost state, and other
// programs on the host. Each test binary runs inside a private host: mount and
// network namespaces of its own, with empty directories in place of the host's
// state. What a test leaves behind on that host fails it. The folders below have
// the tests of the daemon and the plugin (daemon), of network policies (policy),
// and others with a package comment each.
package integration
