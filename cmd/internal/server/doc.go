// Package server is the life of a daemon that serves HTTP on a unix socket, from
// the socket to the last signal. It knows nothing of what is served.
//
// # The socket
//
// [Listen] takes the socket that systemd passes, else it makes one. A lock file
// beside the socket keeps a second daemon from it, and is what makes it safe to
// remove a socket that a killed one has left.
//
// # Start, reload, end
//
// [Run] serves at once, reconciles, and then tells systemd that the daemon is
// ready. SIGHUP reloads. SIGTERM and SIGINT end it: nothing more is accepted, what
// runs has a grace to finish in, then its context ends and what it had begun is
// undone. A second one ends the process at once.
//
// With a watchdog, systemd hears of the daemon only while that answers on its own
// socket.
package server
