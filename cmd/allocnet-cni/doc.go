// allocnet-cni is the CNI plugin of type "allocnet". It sends the request of a runtime
// to allocnetd, and prints the answer. If the daemon is not running, it does the work
// itself, on the daemon's records and leases and with its settings: those that the
// daemon has left beside its socket. If there are none, it reads the file that the key
// "settings" of the configuration names, or /etc/allocnet/allocnetd.hcl, and the
// variables ALLOCNETD_*. It reads no file that users other than root can write.
//
// The plugin itself reads three keys of the configuration; the others are for the
// daemon:
//
//   - "socket": the path of the daemon's socket;
//   - "idleTimeout": how long the daemon may send nothing, such as "5s";
//   - "settings": see above.
//
// It refuses to run as a plugin of the daemon or of itself.
//
// Runtimes start allocnet-cni-shim, a C program in the directory shim, which serves the
// usual case in a fraction of the time that a Go program needs to start. In every other
// case the shim executes this program, with the connection, if the request was sent
// already: the only argument is its descriptor.
package main
