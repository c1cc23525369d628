// Package flannel is allocnet's native CNI plugin "flannel". It makes the configuration
// of another plugin from the subnets that flannel's daemon has leased for the host, and
// delegates to that plugin: bridge and ptp run in-process, all others as binaries.
//
// ADD saves the configuration of the delegate in a directory, in a file with the ID of
// the container, as the reference plugin does. DEL and CHECK use it, because flanneld may
// have leased other subnets since. DEL also works without the file: the delegates find
// what they made by its owner and by the result of ADD.
package flannel
