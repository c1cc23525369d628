// Package integration holds the tests on a real kernel with the reference CNI
// plugins. Each test binary runs inside a private host: mount and network
// namespaces of its own, with empty directories in place of the host's state.
// What a test leaves behind on that host fails it.
package integration
