// Package tuning is the native tuning plugin: sysctls below net and attributes
// of the interface in the container's namespace.
//
// Attributes are put back at DEL, from a backup in the reference plugin's format
// and place, so that each can restore what the other changed. Sysctls are not:
// they go with their namespace.
package tuning
