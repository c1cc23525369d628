// Package rtnl configures links, addresses, routes and sysctls of the host and of
// network namespaces, for the native plugins.
//
// A Host and a Sandbox own open sockets. A socket works in the namespace in which
// it was opened, from any thread, so only opening a Sandbox changes the namespace
// of a thread.
package rtnl
