package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
)

// Bounds of a request. Setup refuses a request that cannot be passed to plugins before
// it records anything, because DEL gets the same arguments.
const (
	// maxArgs is the maximum length of CNI_ARGS. execve limits one environment string,
	// including the name and NUL, to MAX_ARG_STRLEN of linux/binfmts.h with pages of 4
	// KiB.
	maxArgs = 128<<10 - len("CNI_ARGS=") - 1
	// maxArgument bounds a JSON document, and the total of the capability arguments.
	// portMappings is not included, because the number of ports bounds it.
	maxArgument = 1 << 20
	// maxLabel bounds the label of a port.
	maxLabel = 1 << 10
	// maxNetworkName leaves room for an ID and an interface name in a file name.
	maxNetworkName = 255 - names.MaxID - len("--") - 15
)

// ValidateBounds returns an error for each bound that a planned record exceeds, and for
// a prevResult that cannot be parsed.
func ValidateBounds(r *record.Record) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s", allocnet.ErrInvalidAllocation, fmt.Sprintf(format, args...)))
	}
	if n := lengthOfArgs(r.Args); n > maxArgs {
		bad("args: has %d bytes; at most %d are allowed", n, maxArgs)
	}
	total := 0
	for _, name := range slices.Sorted(maps.Keys(r.Capabilities)) {
		n := len(r.Capabilities[name])
		if name == portmap.Capability {
			continue
		}
		if total += n; total > maxArgument {
			bad("%s: capability arguments exceed %d bytes in total", name, maxArgument)
			break
		}
	}
	for i, p := range r.RequestedPorts {
		if len(p.Label) > maxLabel {
			bad("ports[%d]: label has %d bytes; at most %d are allowed", i, len(p.Label), maxLabel)
		}
	}
	errs = append(errs, ValidateDocument("prevResult", r.Previous))
	if len(r.Previous) <= maxArgument {
		_, err := PreviousOf(r)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// lengthOfArgs returns the length of the value of CNI_ARGS.
func lengthOfArgs(args [][2]string) int {
	n := max(0, len(args)-1) // semicolons
	for _, kv := range args {
		n += len(kv[0]) + len("=") + len(kv[1])
	}
	return n
}

// ValidateDocument returns ErrInvalidAllocation for a JSON document that is too long for the arguments of
// a plugin. what names it.
func ValidateDocument(what string, text json.RawMessage) error {
	if len(text) > maxArgument {
		return fmt.Errorf("%w: %s: has %d bytes; at most %d are allowed", allocnet.ErrInvalidAllocation, what, len(text), maxArgument)
	}
	return nil
}

// ValidateNetworkName returns ErrInvalidAllocation for a network whose name is too long for the files of
// its attachments.
func ValidateNetworkName(n *conflist.Network) error {
	if len(n.Name) > maxNetworkName {
		return fmt.Errorf("%w: network %q... has a name of %d characters; at most %d are allowed",
			allocnet.ErrInvalidAllocation, n.Name[:32], len(n.Name), maxNetworkName)
	}
	return nil
}

// validateIgnoreUnknown checks the value of IgnoreUnknown. The CNI library parses this
// argument in every plugin.
func validateIgnoreUnknown(args map[string]string, bad func(string, ...any)) {
	value, given := args[ignoreUnknown]
	if given && !slices.Contains([]string{"1", "true", "0", "false"}, strings.ToLower(value)) {
		bad("args: value %.64q of %q: must be true or false", value, ignoreUnknown)
	}
}
