// Package bench measures allocnet, the tools that it replaces and the bare
// kernel calls in one run on one machine. [Run] is behind make bench, [RunHost]
// behind the command allocnet bench.
//
// One allocation consists of loopback, bridge or ptp, host-local, masquerading,
// firewall and one port as tcp and udp. Its record and its lease are on tmpfs.
// The systems are
//
//   - baseline: bare rtnetlink and nftables messages for the same links,
//     addresses, routes and elements, with no lease, no record and no plugin.
//   - native: the configurator with EngineNative.
//   - exec: the configurator with EngineExec and the reference plugins.
//   - go-cni: the bare go-cni calls with the reference plugins.
//
// Call it in a private host (internal/privhost), so that the machine's own
// network is not changed; what it makes vanishes with that host. Sandboxes are
// created before the clock starts. Within every measurement the systems take
// turns, so that noise affects all of them alike, and only ratios of one run are
// compared with the targets. A missed target is reported and does not fail the
// run; an operation that fails does.
package bench
