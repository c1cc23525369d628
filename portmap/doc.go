// Package portmap turns the ports that an allocation asks for into the port
// mappings that a CNI network is given, and finds out which of them collide.
//
// It only computes. It opens no socket, asks no kernel and reads no file, and
// every function is safe for concurrent use as long as nobody writes to the
// slices it was given. No function changes its arguments.
//
// # Basics
//
// A Port is a wish: publish this port of the host, perhaps only on one of its
// addresses, perhaps a range of them, as that port of the sandbox. Mappings
// checks a list of wishes and spells each of them out as one Mapping per port
// and protocol, which is the form of the portMappings capability:
//
//	mappings, err := portmap.Mappings(portmap.Select(ports, networks), portmap.Options{})
//
// The error holds every fault of the list: a *PortError for each field that
// cannot be used and a *ConflictError for each two ports of the list that want
// the same thing. FindConflict compares the outcome with what other allocations
// already have; wrap what it finds in a *ConflictError of your own, so that
// errors.Is finds ErrConflict in both cases.
//
// Two mappings collide when protocol and host port are the same and some address
// of the host belongs to both. The empty host IP stands for every address,
// "0.0.0.0" for every IPv4 address and "::" for every IPv6 address.
//
// Parse and Port.String are the spelling of a Port on a command line. Select and
// FromNetworks accept the older form of a job, in which ports hang below networks.
//
// # Caveats
//
// Only mappings are compared with mappings. A program of the host that listens on
// a port is not noticed here, and its traffic goes to the sandbox once the port is
// published; the configurator looks for such programs.
//
// "::" is IPv6 alone, unlike a socket bound to it, which often gets IPv4 as well.
// A host IP of one family also does nothing for a sandbox that has only addresses
// of the other.
//
// IPv4-mapped IPv6 addresses become plain IPv4. Addresses with a zone are refused:
// a mapping tells packets apart by their destination address, which has no zone,
// so that the port would be published on more links than the zone names.
//
// Options.IgnoreHostIP makes ports collide that differ in nothing but their host IP.
//
// Labels need not be unique; Lookup returns the first.
//
// A Mapping is made for every single port of a range, up to 196,605 for one Port.
// Bound the number of ports in a list that comes from a stranger.
package portmap
