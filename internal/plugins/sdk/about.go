package sdk

// ReferenceVersion is the release of the reference plugins against which
// allocnet's plugins are tested.
const ReferenceVersion = "v1.9.1"

// About returns the text that a plugin prints if it is run without a command.
// Nomad takes the first version in it as the plugin's version, and runs CHECK
// from 1.3.0 on.
func About(name string) string {
	return "CNI " + name + " plugin of allocnet, compatible with the reference plugins " + ReferenceVersion
}
