package sdk

import "github.com/allocnet/allocnet/internal/names"

// PendingLink is the host's end of the link of an attachment whose packets are dropped until
// the end of ADD. The plugin that makes the link puts it into the group that Pending returns, and
// sets Name and the Group for an attachment without a network policy. The plugin policy replaces
// that of a routed link.
type PendingLink struct {
	Name  string
	Group uint32
}

// Pending sets the link and its final group, and returns the group in which the link is made.
func (a *CmdArgs) Pending(name string, group uint32) uint32 {
	if a.Link == nil {
		return group
	}
	a.Link.Name, a.Link.Group = name, group
	if group == names.GuardedPortGroup {
		return names.PendingPortGroup
	}
	return names.PendingGroup
}

// Release puts the link into its final group. Until then nothing of the attachment passes.
func (l *PendingLink) Release(host *Host) error {
	if l == nil || l.Name == "" {
		return nil
	}
	return host.Kernel.SetGroup(l.Name, l.Group)
}
