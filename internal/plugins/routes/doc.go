// Package routes is allocnet's CNI plugin "routes". For each address of a container it writes
// a route into a routing table of the host, with a protocol number of its own, from which a
// routing daemon such as BIRD exports it to other hosts. It has no reference plugin.
//
// It comes after the plugin that makes the interface, and needs no more of it than the
// result:
//
//	{"type": "routes", "table": 100, "protocol": 91, "subnets": false}
//
// The route leads over the host's interface of the result: the veth of ptp, the bridge, or
// the bridge's VLAN interface. With "subnets" it leads to the network of the address instead,
// once for all containers: over the bridge, or, as the veths of ptp have no common interface,
// to nothing (an unreachable route).
//
// The plugin writes only into tables in which the kernel does not look by itself. The tables
// main, default and local are refused: main has the routes by which the host reaches the
// containers, IPv6 does not accept a second route to the same destination there, and whatever
// is written there changes the way of packets. A protocol is refused if the kernel,
// administrators (boot, static) or routing daemons use it: a daemon deletes routes of its own
// protocol that it does not know.
//
// Package announce adds and deletes the routes, and describes how it finds those of one
// container.
package routes
