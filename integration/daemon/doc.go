// Package daemon holds the tests of allocnetd and of the CNI plugin that talks to
// it, on a real kernel: what runtimes see, reloads, faults, kills, the repair of
// damage by other programs, and the installation. See the package integration.
package daemon
