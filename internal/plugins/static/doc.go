// Package static is allocnet's native CNI plugin "static", an IPAM plugin. It
// returns the addresses of the configuration, or requested ones.
package static
