package sdk

// ReferenceVersion is the release of the reference plugins against which
// allocnet's plugins are tested.
const ReferenceVersion = "v1.9.1"

// About returns the text that a plugin prints if it is run without a command. Its
// first line is that of the reference plugin, because programs read the version in
// it: Nomad takes the first word that is one, and runs CHECK from 1.3.0 on; nerdctl
// takes what follows the name of the plugin firewall, and sets its ingressPolicy
// from 1.1.0 on.
func About(name string) string {
	return "CNI " + name + " plugin " + ReferenceVersion + "\nof allocnet, compatible with the reference plugins of that release"
}
