// Package bandwidth is allocnet's native CNI plugin "bandwidth". A token bucket
// on the host's end of the container's veth limits what the container receives.
// Another one, on an ifb to which the host's end redirects, limits what it sends.
//
// Links and queueing disciplines have the reference plugin's names and handles,
// so that each plugin can delete the other's.
package bandwidth
