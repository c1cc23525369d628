// Package crash tests, on a real kernel, that a process dies or a system call
// fails at any point at which an operation changes something.
package crash
