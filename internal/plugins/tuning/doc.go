// Package tuning is allocnet's native CNI plugin "tuning". It sets sysctls below
// net and attributes of the interface in the container's network namespace.
//
// DEL restores the attributes from a backup with the reference plugin's format and
// path, so that each plugin can restore the other's changes. It does not restore
// sysctls, which disappear with their namespace.
package tuning
