package sdk

// ReferenceVersion is the release of the reference plugins with which allocnet's
// plugins are compared.
const ReferenceVersion = "v1.9.1"

// About returns what a plugin prints if it is run without a command. Nomad takes the
// first version in it for the plugin's, and runs CHECK from 1.3.0 on.
func About(name string) string {
	return "CNI " + name + " plugin of allocnet, compatible with the reference plugins " + ReferenceVersion
}
