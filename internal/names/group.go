package names

// The groups (see ip-link(8)) of links of allocations. Links that are being removed are in one of
// the two groups that follow GuardedGroup, whatever they were before.
const (
	// GuardedGroup is the group of the routed links over which packets arrive only from
	// addresses that the host reaches over the same link.
	GuardedGroup = 0x646f6f6c
	// GuardedPortGroup is the group of the bridge ports from which frames arrive only
	// with the MAC and the addresses of their allocation.
	GuardedPortGroup = GuardedGroup | portBit
	// PendingPortGroup is that of such bridge ports whose network policy is not active yet.
	// They receive nothing.
	PendingPortGroup = GuardedPortGroup + 1
	// DropInPortGroup is that of guarded bridge ports of plugin binaries. They have elements from
	// the beginning. No record can restore lost ones, so their ports are released: they get
	// the group ReleasedPortGroup, which no guard holds for.
	DropInPortGroup   = GuardedPortGroup + 2
	ReleasedPortGroup = 0x6c6f7374
	// PendingGroup is that of guarded routed links that are being set up, and FirstPolicyGroup
	// to LastPolicyGroup are those of guarded routed links whose allocation has a network
	// policy. Packets over links of these groups, and over links that are being removed, are
	// dropped unless there is a policy for the group.
	PendingGroup     = 0x646f0000
	FirstPolicyGroup = 0x646f0001
	LastPolicyGroup  = 0x646f5fff

	portBit     = 0x10
	removalBits = 3
)

// LinkGroups is the part of a group's number that all of them share, so that the guard of routed
// links also holds during a removal. PortGroups is the part that bridge ports and links that are
// being removed share.
const (
	LinkGroups = ^uint32(0xffff)
	PortGroups = ^uint32(removalBits | portBit)
)

// IsGuardedPort reports whether a group is that of guarded bridge ports after their ADD.
func IsGuardedPort(group uint32) bool { return group == GuardedPortGroup || group == DropInPortGroup }

// IsGuarded reports whether a group is one of the above, or of links that are being removed. The
// guard of routed links holds for all of them.
func IsGuarded(group uint32) bool { return group&LinkGroups == GuardedGroup&LinkGroups }
