package thin

// ReferenceVersion is the release of the reference plugins that allocnet's are
// compared with.
const ReferenceVersion = "v1.9.1"

// About is what a plugin says of itself where it gets no command. Nomad takes the
// first version in it for the plugin's, and runs CHECK from 1.3.0 on.
func About(name string) string {
	return "CNI " + name + " plugin of allocnet, compatible with the reference plugins " + ReferenceVersion
}
