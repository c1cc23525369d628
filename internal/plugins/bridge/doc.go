// Package bridge is the native bridge plugin: a pair of links of which the
// host's end is a port of a bridge.
package bridge
