// Package settings is everything that the daemon can be told: by a file in HCL,
// by environment variables ALLOCNETD_*, and by flags. A flag wins over the
// environment, that over the file, and that over the defaults.
//
// Each setting is described once, in the table of table.go, from which its key
// in the file, its variable and its flag follow: operations in the block
// limits is ALLOCNETD_LIMITS_OPERATIONS and --limits-operations.
//
// What came out of that is written beside the socket of the daemon, see [ActiveFile], for
// the plugin when the daemon is away.
//
// packaging/allocnetd.hcl shows all settings with their defaults.
package settings
