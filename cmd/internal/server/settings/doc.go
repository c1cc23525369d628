// Package settings reads the daemon's settings from a file in HCL, from environment
// variables ALLOCNETD_* and from flags. A flag overrides the environment, the
// environment overrides the file, and the file overrides the defaults.
//
// The table in table.go describes each setting once. Its key in the file, its variable
// and its flag follow from that: "operations" in the block "limits" is
// ALLOCNETD_LIMITS_OPERATIONS and --limits-operations.
//
// The daemon writes its active settings beside its socket, see [ActiveFile]. The CNI
// plugin reads them while the daemon is not running.
//
// packaging/allocnetd.hcl shows all settings with their defaults.
package settings
