package rtnl

// Find is find.
func (v *Veth) Find(h *Host, s *Sandbox) error { return v.find(h, s) }

// ReadDefaultRouteMTUs is readDefaultRouteMTUs.
func (h *Host) ReadDefaultRouteMTUs() (DefaultRouteMTUs, error) { return h.readDefaultRouteMTUs() }

// Pause is pause.
var Pause = pause

// AwaitReception is awaitReception.
var AwaitReception = awaitReception
