// Package heal decides when the daemon repairs what other programs have removed from the
// host. Package watch reports what was changed, and the configurator repairs.
//
// A change that can be damage leads to a Restore, which compares the host with the
// records of all allocations and restores what is missing. A Checker then runs CHECK of
// the allocations that were affected, and goes through all allocations in the
// background.
//
// If another program repeats the same kind of damaging change, the Healer repairs less
// and less often, and names that program.
package heal
