// Package firewalld asks firewalld over D-Bus to take addresses as sources of its
// zones, which then decide what these may send. Such sources are of the running
// firewalld only: they are gone after a reload or a restart.
package firewalld
