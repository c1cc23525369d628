// Package watch tells which changes of other programs can have damaged the networks of
// allocations: removals in allocnet's nftables tables and in those that firewalls share
// with it, of bridges and veths, of their addresses and of routes over them.
//
// It listens to notifications of nf_tables and of rtnetlink. A notification does not say
// whether something is missing now, so a Change is a reason to compare, and no more.
// Changes that this process or another program of allocnet has made are left out: they
// are told apart by the socket that made them, and by the name of the process.
//
// A route that replaces another one is notified with the link to which it leads now. Whether it was
// the route of an allocation shows its destination, which the caller compares with the records.
//
// A Watcher waits for changes. A Monitor answers, without waiting, whether there were any
// since a moment.
//
// A busy host makes thousands of notifications, almost all of them about allocations
// that come and go. Therefore a filter in the kernel drops the kinds that never matter,
// the others are read in bunches, and of most only the header is looked at.
package watch
