// Package heal decides when the daemon repairs what other programs have removed from the
// host. Package watch tells what was changed, and the configurator repairs.
//
// A change that can be damage leads to a Restore, which compares the host with the
// records of all allocations and restores what is missing. A Checker then runs CHECK of
// the allocations that were affected, and goes through all allocations in the
// background.
//
// If the same kind of change keeps damaging the networks, another program insists on it.
// The Healer then repairs less and less often, and names that program.
package heal
