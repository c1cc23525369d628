// Package crash has the tests in which a process dies, or a system call fails, at
// every point at which an operation changes something, on a real kernel.
package crash
