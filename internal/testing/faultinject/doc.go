// Package faultinject runs a program under test and stops it at every system call
// that changes something: a file, a network object, a mount, a process. At each of
// these points a test lets the call happen, fails it with an error number, or kills
// the process before it.
//
// # Basics
//
// The program needs no hooks. A seccomp filter passes the calls to the test
// process (seccomp_unotify(2)), which reads their arguments and decides.
// [Command] runs any program this way. A test binary with a mode of its own
// calls [Enter] before the operation under test. Call [Main] first in TestMain.
//
// Calls that change nothing are not points: netlink requests that only read,
// opening an existing file, removing a missing one.
//
// # Caveats
//
// Only the process under test has points. Its children run under the same
// filter, but all their calls are allowed. The filter supports amd64 and arm64
// and needs Linux 5.19. It does not cover calls that Go does not make, nor
// setsockopt(2).
package faultinject
