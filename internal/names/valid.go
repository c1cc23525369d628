package names

import (
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
)

// The functions here are the one validator of names that come from outside and
// become part of a path, a link or a rule. They are called where a name is read,
// and again before a path is made of it. Each error is a *types.Error with the
// code that CNI has for it.

// MaxID is the length of the longest ID of an allocation or a container: with the
// names of a network and an interface it still makes a file name.
const MaxID = 128

const (
	maxFile = 255
	// maxChain is what iptables takes.
	maxChain = 28
)

// ValidateContainer validates the ID of a container or an allocation. Its length
// is the caller's to bound: see MaxID.
func ValidateContainer(id string) error { return coded(utils.ValidateContainerID(id), id) }

// ValidateNetwork validates the name of a network.
func ValidateNetwork(name string) error { return coded(utils.ValidateNetworkName(name), name) }

// ValidateInterface validates the name of a network interface, a bridge included.
func ValidateInterface(name string) error { return coded(utils.ValidateInterfaceName(name), name) }

// ValidatePluginType validates the type of a plugin, IPAM plugins included. It is
// the name of a file, and part of a directory's name in a list that colons separate.
func ValidatePluginType(name string) error {
	switch {
	case name == "", name == ".", name == "..", len(name) > maxFile, strings.ContainsAny(name, `/\:`), strings.ContainsFunc(name, isControl):
		return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("type %s is not a file name", quote(name)),
			"name the plugin's program without a path")
	}
	return nil
}

// ValidateChain validates the name of an iptables chain, which must be neither an
// option nor two words to the programs that it is given to.
func ValidateChain(name string) error {
	bad := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"'\`, r) }
	if name == "" || len(name) > maxChain || name[0] == '-' || name[0] == '!' || strings.ContainsFunc(name, bad) {
		return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("%s is not the name of an iptables chain", quote(name)),
			fmt.Sprintf("use at most %d printable characters, without spaces and quotes", maxChain))
	}
	return nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// quote shows what may be very long.
func quote(name string) string { return fmt.Sprintf("%.64q", name) }

// coded keeps a nil pointer from becoming an error. It quotes the name in the details:
// a refused name may hold line breaks and control characters of terminals.
func coded(err *types.Error, name string) error {
	if err == nil {
		return nil
	}
	if name != "" && err.Details == name {
		err.Details = quote(name)
	}
	return err
}
