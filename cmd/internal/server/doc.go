// Package server runs a daemon that serves HTTP on a Unix socket: it provides the
// socket, signal handling, reload, watchdog and shutdown. The caller provides the
// handler.
//
// # The socket
//
// [Listen] takes the socket that systemd passes, or creates one. A lock file beside the
// socket excludes a second daemon. The holder of the lock may safely remove a stale
// socket of a killed daemon.
//
// # Start, reload, end
//
// [Run] serves at once, reconciles, and then notifies systemd that the daemon is ready.
// SIGHUP reloads. SIGTERM and SIGINT end the daemon: it accepts no more connections and
// running requests get a grace period. Then their contexts end, and the requests undo
// what they have begun. A second signal ends the process at once.
//
// With a watchdog, systemd gets keepalives only while the daemon answers on its own
// socket.
package server
