// Package cniwire is what the CNI plugin and the daemon say to each other: the
// plugin sends one POST of a [Request] to [Path] on the daemon's unix socket, in
// HTTP/1.1, and gets a [Response]. While an operation lasts, the daemon sends a
// newline every [Heartbeat], which means nothing in front of JSON, so that the
// plugin can tell slow from hung.
//
// Package thin below it is the plugin's side, and holds what both sides share.
package cniwire
