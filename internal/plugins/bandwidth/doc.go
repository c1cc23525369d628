// Package bandwidth is the native bandwidth plugin: a token bucket on the host's
// end of the container's veth for what the container receives, and one on an
// ifb, to which the host's end redirects, for what it sends.
//
// Links and queueing disciplines have the names and handles of the reference
// plugin, so that each can delete what the other added.
package bandwidth
