package rtnl

// Find is find.
func (v *Veth) Find(h *Host, s *Sandbox) error { return v.find(h, s) }

// FindWayOut is findWayOut.
func (h *Host) FindWayOut() (WayOut, error) { return h.findWayOut() }

// Pause is pause.
var Pause = pause
