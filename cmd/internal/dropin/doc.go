// Package dropin runs native plugins in the daemon for the runtimes that start them as
// plugin binaries. The binary is the C shim allocnet-plugins-shim, and so takes a
// fraction of the time in which a Go program starts and opens its sockets.
//
// # The protocol
//
// The shim sends one POST to Path, followed by the name of the plugin, on the daemon's
// unix socket, in HTTP/1.1. The body is what the runtime wrote to stdin. Header fields
// carry the runtime's variables, and which files the shim sees: see the Header
// constants. While the call waits or runs, the daemon sends a response with the status
// 102 every [cni.Keepalive]. The answer has the status 200, or 204 if the plugin succeeds and
// prints nothing. Its body is what the plugin prints on stdout, and header fields carry
// the exit status and the lines for stderr.
//
// Any other status is a refusal: nothing was done, or it was undone. The shim then
// executes the program allocnet-plugins, which does the same work in its own process.
// The exceptions are 408, 429, 503 and 504, with which the plugin fails with code 11,
// and 500, after which the shim does not know what was done.
//
// # Same work
//
// The daemon serves a call only if allocnet-plugins would do the same: it has the same
// network and mount namespace and the same root directory, CNI_NETNS leads it to the
// same file, and no path depends on the working directory. Objects in the kernel have
// the same owners, so either can remove what the other has set up. All calls that are
// not valid, that need a plugin binary, or for which the daemon lacks a permission are
// refused with wire.ErrNotServed; so the program reports the errors of the former, and
// runs binaries in the environment of the runtime.
package dropin
