package allocnet

// Network is one network that Setup could be asked for.
type Network struct {
	Name         string   `json:"name"`
	File         string   `json:"file,omitempty"` // "" for the embedded network
	CNIVersion   string   `json:"cniVersion"`
	Plugins      []string `json:"plugins"`
	Capabilities []string `json:"capabilities"`
	Default      bool     `json:"default"`
	// Engine is the one that would set it up now.
	Engine Engine `json:"engine"`
	// Reason says why plugins of it run as binaries although there are native ones;
	// "" if none does, or the Config has it so.
	Reason string `json:"reason,omitempty"`
}
