// Package packaging tests what a release contains: that two builds of it are
// the same, and that its packages can be installed, upgraded over running
// allocations, removed and purged.
//
// The packages are installed by dpkg on a throwaway host: systemd, started in
// namespaces of its own on an overlay of this host's root. The units, the
// sockets and the restarts are therefore real, and nothing of it stays.
//
// "make package-test" runs all tests, which takes minutes. "make test" runs
// those that need no release.
package packaging
