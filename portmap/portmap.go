package portmap

// Port is a port, or a range of ports, that an allocation requests to publish
// on the host.
type Port struct {
	// Label is a name of the port for users and for Lookup. It may be empty.
	Label string `json:"label,omitempty"`
	// Value is the port on the host, 1-65535. With 0, Setup and Update pick a free one of
	// Config.DynamicPorts; Mappings and FromNetworks do not accept it.
	Value int `json:"value"`
	// To is the port inside the sandbox, at most 65535; less than 1 means the
	// same as Value.
	To int `json:"to,omitempty"`
	// Range is how many consecutive ports are published, starting at Value
	// and at To; 0 and 1 mean one. Neither end may lie beyond 65535.
	Range int `json:"range,omitempty"`
	// HostIP limits the port to one address of the host, without zone. "" means
	// all addresses, "0.0.0.0" all of IPv4 and "::" all of IPv6.
	HostIP string `json:"hostIP,omitempty"`
	// Protocols are "tcp", "udp" and "sctp" in any case; none means tcp and udp.
	Protocols []string `json:"protocols,omitempty"`
}

// Capability is the name of the capability whose argument are Mappings; see the CNI
// conventions.
const Capability = "portMappings"

// Mapping is one published port of one protocol, in the form of the portMappings
// capability of the CNI conventions, with the label added. The function Mappings
// returns protocols in lower case and host IPs in their shortest spelling.
type Mapping struct {
	Label         string `json:"label,omitempty"`
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

// Lookup returns the first mapping with the given label, and whether there is one. The
// empty label finds the first mapping without a label.
func Lookup(mappings []Mapping, label string) (Mapping, bool) {
	for _, m := range mappings {
		if m.Label == label {
			return m, true
		}
	}
	return Mapping{}, false
}
