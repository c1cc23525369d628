package portmap

import "slices"

// Network holds the ports of one network in an older form of jobs.
type Network struct {
	// DynamicPorts are ports whose host port the scheduler chose.
	DynamicPorts []Port `json:"dynamicPorts,omitempty"`
	// ReservedPorts are ports whose host port the job requests.
	ReservedPorts []Port `json:"reservedPorts,omitempty"`
}

// FromNetworks returns the ports of all networks in order, for each network first the
// dynamic and then the reserved ports. It omits their host IPs: in this form, a port is
// always published on all addresses of the host.
func FromNetworks(networks []Network) []Port {
	var ports []Port
	for _, n := range networks {
		for _, p := range slices.Concat(n.DynamicPorts, n.ReservedPorts) {
			p.HostIP = ""
			ports = append(ports, p)
		}
	}
	return ports
}

// Select returns ports unchanged if there are any, otherwise the ports of networks.
func Select(ports []Port, networks []Network) []Port {
	if len(ports) > 0 {
		return ports
	}
	return FromNetworks(networks)
}
