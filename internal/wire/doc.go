// Package wire defines the bodies and errors of the HTTP API of allocnetd that are not types
// of package allocnet.
package wire
