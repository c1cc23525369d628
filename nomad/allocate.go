package nomad

import (
	"errors"
	"fmt"
)

// Host is what a host offers to the ports of a job.
type Host struct {
	// Networks are the addresses of the host networks by name. Without the network
	// "default", ports of that network are published on all addresses.
	Networks map[string]string
	// Choose returns a free host port for a dynamic port; hostIP "" means that it must be
	// free on all addresses. Nomad chooses from 20000 to 32000 unless configured otherwise.
	Choose func(hostIP string) (int, error)
}

// Allocate returns the ports of a network block with their host ports and addresses, static
// ports first. The error joins all faults, each with the label of the port. Whether static
// ports are free is not examined: Setup does that.
func (n *Network) Allocate(h Host) ([]AllocatedPort, error) {
	var list []AllocatedPort
	var errs []error
	add := func(p Port, static bool) {
		allocated, err := h.allocate(p, static)
		if err != nil {
			errs = append(errs, fmt.Errorf("port %q: %w", p.Label, err))
		}
		list = append(list, allocated)
	}
	for _, p := range n.ReservedPorts {
		add(p, true)
	}
	for _, p := range n.DynamicPorts {
		add(p, false)
	}
	if err := errors.Join(append(errs, checkLabels(list))...); err != nil {
		return nil, err
	}
	return list, nil
}

// allocate returns one port with its host port and address.
func (h Host) allocate(p Port, static bool) (a AllocatedPort, err error) {
	a = AllocatedPort{Label: p.Label, Value: p.Value, To: p.To}
	if p.To < -1 || p.To > 65535 {
		return a, fmt.Errorf("to %d must be 1 to 65535, or -1 for the same as the host port", p.To)
	}
	name := p.HostNetwork
	if name == "" {
		name = "default"
	}
	ip, known := h.Networks[name]
	if !known && name != "default" {
		return a, fmt.Errorf("unknown host_network %q", name)
	}
	a.HostIP = ip
	switch {
	case static && (p.Value < 1 || p.Value > 65535):
		err = fmt.Errorf("static %d must be 1 to 65535", p.Value)
	case p.Value == 0 && h.Choose == nil:
		err = errors.New("no host port is chosen")
	case p.Value == 0:
		a.Value, err = h.Choose(ip)
	}
	return a, err
}
