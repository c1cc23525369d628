// Package rtnl is the native plugins' way to rtnetlink, sysctl and network
// namespaces.
//
// A Host and a Sandbox are open sockets: what was opened in a namespace goes on
// working there from any thread, so nothing here changes the namespace of a
// thread but the opening itself.
package rtnl
