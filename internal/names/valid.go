package names

import (
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
)

// The functions in this file are the only validators of names from configurations and
// requests that become part of a path, a link or a rule. They are called where a name
// is read, and again before it becomes part of a path. Each error is a *types.Error
// with the CNI code for an invalid name.

// MaxID is the maximum length of the ID of an allocation or a container. Together with
// the names of a network and an interface, such an ID still fits in a file name.
const MaxID = 128

const (
	maxFile = 255
	// maxChain is the maximum length in iptables.
	maxChain = 28
)

// ValidateContainer validates the ID of a container or an allocation. The caller must
// limit its length: see MaxID.
func ValidateContainer(id string) error { return coded(utils.ValidateContainerID(id), id) }

// ValidateNetwork validates the name of a network.
func ValidateNetwork(name string) error { return coded(utils.ValidateNetworkName(name), name) }

// ValidateInterface validates the name of a network interface, including bridges. For an
// interface that may not exist yet, use ValidateNewInterface.
func ValidateInterface(name string) error { return coded(utils.ValidateInterfaceName(name), name) }

// ValidateNewInterface validates the name of an interface to be created. From a name with
// "%d" the kernel would make another one, with a number. It refuses "all" and "default", which
// stand for the settings of all interfaces and of new ones in /proc/sys/net.
func ValidateNewInterface(name string) error {
	if name == "all" || name == "default" {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "the kernel reserves this interface name", quote(name))
	}
	if strings.Contains(name, "%") {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "interface name contains %", quote(name))
	}
	return ValidateInterface(name)
}

// ValidateAttachments validates the list of valid attachments of a GC, the value of a key.
func ValidateAttachments(key string, list []types.GCAttachment) error {
	for i, a := range list {
		err := errors.Join(ValidateContainer(a.ContainerID), ValidateInterface(a.IfName))
		if a.ContainerID == "" || a.IfName == "" {
			err = errors.New("containerID or ifname is missing")
		}
		if err != nil {
			return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("%s[%d] is not an attachment", key, i), err.Error())
		}
	}
	return nil
}

// ValidateArgument validates the name of one of CNI_ARGS.
func ValidateArgument(name string) error {
	if name == "" || strings.ContainsAny(name, "=; \t\n\x00") {
		return fmt.Errorf("%.64q is not the name of one of CNI_ARGS", name)
	}
	return nil
}

// ValidatePluginType validates the type of a plugin or an IPAM plugin. The type is a
// file name, and part of the name of a directory in a list separated by colons.
func ValidatePluginType(name string) error {
	switch {
	case name == "", name == ".", name == "..", len(name) > maxFile, strings.ContainsAny(name, `/\:`), strings.ContainsFunc(name, isControl):
		return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("type %s is not a file name", quote(name)),
			"name the plugin's program without a path")
	}
	return nil
}

// ValidateChain validates the name of an iptables chain. The programs of iptables must
// not read it as an option or as two words.
func ValidateChain(name string) error {
	bad := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"'\`, r) }
	if name == "" || len(name) > maxChain || name[0] == '-' || name[0] == '!' || strings.ContainsFunc(name, bad) {
		return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("%s is not the name of an iptables chain", quote(name)),
			fmt.Sprintf("use at most %d printable characters, without spaces and quotes", maxChain))
	}
	return nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// quote quotes at most 64 bytes of a name.
func quote(name string) string { return fmt.Sprintf("%.64q", name) }

// coded returns nil for a nil pointer, so that it does not become a non-nil error. It
// quotes the name in the details, because an invalid name may contain line breaks and
// control characters.
func coded(err *types.Error, name string) error {
	if err == nil {
		return nil
	}
	if name != "" && err.Details == name {
		err.Details = quote(name)
	}
	return err
}
