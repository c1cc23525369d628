// Package faultinject runs a program under test and stops it at every system call
// that changes something: a file, a network object, a mount, a process. At each of
// these points a test lets the call happen, fails it with an error number, or kills
// the process before it.
//
// # Basics
//
// The program needs no hooks. A seccomp filter hands the calls to the test process
// (seccomp_unotify(2)), which reads their arguments and decides. [Command] runs any
// program so; a test binary in a mode of its own calls [Enter] before the operation
// that it tests. Call [Main] first thing in TestMain.
//
// Calls that change nothing are no points: netlink requests that only read, opening
// a file that is there, removing one that is not.
//
// # Caveats
//
// Only the process under test has points. What it starts runs under the same filter,
// and each of its calls is let through. The filter is for amd64 and arm64 and needs
// Linux 5.19. Calls that Go does not make are not looked at, nor is setsockopt(2).
package faultinject
