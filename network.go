package allocnet

// Network is a network that an Allocation can name.
type Network struct {
	Name         string   `json:"name"`
	File         string   `json:"file,omitempty"` // "" for the embedded network
	CNIVersion   string   `json:"cniVersion"`
	Plugins      []string `json:"plugins"`      // their types, in order
	Capabilities []string `json:"capabilities"` // that a plugin declares
	Default      bool     `json:"default"`
	// Engine is the engine with which Setup would run the network now.
	Engine Engine `json:"engine"`
	// Reason explains why plugins of the network run as binaries although native
	// plugins of these types exist. It is "" if none does, or if the Config selects
	// EngineExec.
	Reason string `json:"reason,omitempty"`
	// Invalid is what every Setup in the network alone refuses in the configurations of the native plugins; ""
	// for nothing. A network without a plugin that makes an interface can be set up only with a PrevResult.
	Invalid string `json:"invalid,omitempty"`
}
