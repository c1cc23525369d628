package portmap

import "slices"

// Network has the ports of one network of a job, in an older form of jobs.
type Network struct {
	// DynamicPorts are ports whose host port the scheduler chose.
	DynamicPorts []Port `json:"dynamicPorts,omitempty"`
	// ReservedPorts are ports whose host port the job requests.
	ReservedPorts []Port `json:"reservedPorts,omitempty"`
}

// FromNetworks returns the ports of all networks in order, of each one first
// the dynamic and then the reserved ports. Their host IPs are left out: in this
// form a port is always published on all addresses of the host.
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

// Select returns ports as it is when it has any, else the ports of networks.
func Select(ports []Port, networks []Network) []Port {
	if len(ports) > 0 {
		return ports
	}
	return FromNetworks(networks)
}
