// Package bridge is allocnet's native CNI plugin "bridge". It connects the
// container to the host with a veth whose host end is a port of a bridge.
package bridge
