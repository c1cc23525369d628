// allocnet-cni is the CNI plugin of type "allocnet". It sends the request of a runtime
// to allocnetd and prints the answer. If the daemon is not running, the plugin serves
// the request itself, on the daemon's records and leases. It then uses the active
// settings that the daemon wrote beside its socket. If there are none, it reads the file
// that the key "settings" of the configuration names, or /etc/allocnet/allocnetd.hcl,
// and the variables ALLOCNETD_*. It reads no file that users other than root can write.
//
// The plugin itself reads three keys of the configuration; the others are for the
// daemon:
//
//   - "socket": the path of the daemon's socket;
//   - "idleTimeout": the longest time without data from the daemon, such as "5s";
//   - "settings": see above.
//
// It refuses to run as a plugin of the daemon or of itself.
//
// Runtimes start allocnet-cni-shim, a C program in the directory shim, which serves the
// usual case in a fraction of the time that a Go program needs to start. In every other
// case the shim executes this program. If the shim has already sent the request, the
// only argument is the descriptor of the connection.
package main
