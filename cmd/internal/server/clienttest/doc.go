// Package clienttest tests package client against the daemon's API.
package clienttest
