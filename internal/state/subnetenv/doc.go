// Package subnetenv reads the file in which flannel's daemon describes the host's part
// of a cluster's network, and derives from it the configuration of the plugin to which
// a configuration of type "flannel" delegates.
//
// The package has no state and runs no plugins.
package subnetenv
