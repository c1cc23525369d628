package portmap

// Port is one port that an allocation asks to have published on the host.
type Port struct {
	// Label names the port for people and for Lookup. It may be empty.
	Label string `json:"label,omitempty"`
	// Value is the port on the host, 1-65535.
	Value int `json:"value"`
	// To is the port inside the sandbox; less than 1 means the same as Value.
	To int `json:"to,omitempty"`
	// Range is how many consecutive ports are published, starting at Value
	// and at To; less than 2 means one.
	Range int `json:"range,omitempty"`
	// HostIP limits the port to one address of the host; "" means all.
	HostIP string `json:"hostIP,omitempty"`
	// Protocols are "tcp", "udp" and "sctp" in any case; none means tcp and udp.
	Protocols []string `json:"protocols,omitempty"`
}

// Mapping is one published port of one protocol, in the spelling of the
// portMappings capability of the CNI conventions, with the label added.
type Mapping struct {
	Label         string `json:"label,omitempty"`
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}
