// Package portmap turns the ports that an allocation requests into the port
// mappings of a CNI network, and finds conflicts between them.
//
// It only computes: it opens no socket and reads no file. All functions are safe
// for concurrent use as long as no goroutine writes to their arguments. No
// function changes its arguments.
//
// # Basics
//
// A Port is a request: publish a port of the host, or a range of ports, on all of
// its addresses or on one of them, as a port of the sandbox. Mappings validates a
// list of requests and returns one Mapping per port and protocol, in the form of
// the portMappings capability:
//
//	mappings, err := portmap.Mappings(portmap.Select(ports, networks), portmap.Options{})
//
// The error holds every fault of the list: a *PortError for each invalid field and
// a *ConflictError for each pair of ports that overlap. FindConflict compares the
// mappings with those of other allocations; wrap its result in a *ConflictError, so
// that errors.Is finds ErrConflict in both cases.
//
// Two mappings overlap if protocol and host port are the same and an address of the
// host belongs to both. The empty host IP stands for every address,
// "0.0.0.0" for every IPv4 address and "::" for every IPv6 address.
//
// Parse and Port.String convert a Port from and to its notation on a command line.
// Select and FromNetworks accept an older form of jobs, in which each network has
// its ports.
//
// # Caveats
//
// The package compares mappings with mappings only. It does not notice a process
// of the host that listens on a port; once the port is published, its traffic goes
// to the sandbox. The configurator looks for such processes.
//
// "::" means IPv6 only, unlike for a socket, which often receives IPv4 as well. A
// host IP of one family has no effect for a sandbox with addresses of the other
// family only.
//
// IPv4-mapped IPv6 addresses become IPv4 addresses. Addresses with a zone are
// refused: a mapping matches the destination address of packets, which has no zone,
// so the port would be published on more links than the zone names.
//
// With Options.IgnoreHostIP, ports that differ only in their host IP conflict.
//
// Labels need not be unique; Lookup returns the first.
//
// A Mapping is made for every single port of a range, up to 196,605 for one Port.
// Limit the number of ports in a list from an untrusted source.
package portmap
