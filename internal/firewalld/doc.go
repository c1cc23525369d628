// Package firewalld adds addresses as sources to firewalld's zones over D-Bus.
// The rules of a zone then apply to packets of its sources. firewalld drops
// these sources at a reload or restart.
package firewalld
