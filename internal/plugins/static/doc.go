// Package static is the IPAM plugin static inside the process: the addresses are
// those of the configuration, or those asked for.
package static
