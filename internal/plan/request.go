package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/engine/native"
	"github.com/allocnet/allocnet/internal/names"
	bandwidthplugin "github.com/allocnet/allocnet/internal/plugins/bandwidth"
	policyplugin "github.com/allocnet/allocnet/internal/plugins/policy"
	"github.com/allocnet/allocnet/portmap"
)

// ValidateID returns ErrInvalidAllocation for an ID that cannot be part of the name of a file.
func ValidateID(id string) error {
	if len(id) > names.MaxID {
		return fmt.Errorf("%w: ID %q... has %d characters; at most %d are allowed", allocnet.ErrInvalidAllocation, id[:32], len(id), names.MaxID)
	}
	if err := names.ValidateContainer(id); err != nil {
		return fmt.Errorf("%w: ID %q: must be letters, digits, '_', '.' and '-', and begin with a letter or digit: %w", allocnet.ErrInvalidAllocation, id, err)
	}
	return nil
}

// ContainerID returns the container ID of an allocation, or "" if it equals the ID.
func ContainerID(a *allocnet.Allocation) string {
	if a.ContainerID == a.ID {
		return ""
	}
	return a.ContainerID
}

// Validate joins the errors of an allocation that can be found without the
// Config and the host.
func Validate(a *allocnet.Allocation) error {
	errs := []error{ValidateID(a.ID)}
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s", allocnet.ErrInvalidAllocation, fmt.Sprintf(format, args...)))
	}
	if !filepath.IsAbs(a.Netns) || !utf8.ValidString(a.Netns) || len(a.Netns) >= unix.PathMax {
		bad("netns %.256q: must be an absolute path of less than %d bytes, in UTF-8", a.Netns, unix.PathMax)
	}
	for _, args := range []map[string]string{a.Args, a.SchedulerArgs} {
		validateIgnoreUnknown(args, bad)
		for _, k := range slices.Sorted(maps.Keys(args)) {
			if k == "" || strings.ContainsAny(k, ";=\x00") {
				bad("args: key %.64q: must not be empty or contain ';', '=' or NUL", k)
			}
			if strings.ContainsAny(args[k], ";=\x00") { // the CNI library's parser refuses '=' as well
				bad("args: value %.64q of %.64q: must not contain ';', '=' or NUL", args[k], k)
			}
			if !utf8.ValidString(k + args[k]) {
				bad("args: %.64q=%.64q: not UTF-8", k, args[k])
			}
		}
	}
	validateNames(a, bad)
	validateMACs(a, bad)
	for _, ip := range a.IPs {
		if _, err := netip.ParsePrefix(ip); err != nil {
			if addr, err := netip.ParseAddr(ip); err != nil || addr.Zone() != "" {
				bad("ips: %q: not an address with or without a prefix length", ip)
			}
		}
	}
	if a.Bandwidth != nil {
		if err := bandwidthplugin.Limits(*a.Bandwidth).Validate(); err != nil {
			bad("bandwidth: %v", err)
		}
	}
	validateRanges(a.IPRanges, bad)
	validatePluginDirs(a.PluginDirs, bad)
	if a.NetnsOverride && a.OwnNetns {
		bad("netnsOverride and ownNetns: give only one of them")
	}
	return errors.Join(errs...)
}

// validateMACs refuses hardware addresses that the interface cannot have. A MAC in CNI_ARGS that is
// no hardware address is a matter of the plugins.
func validateMACs(a *allocnet.Allocation, bad func(string, ...any)) {
	if a.MAC != "" {
		if _, err := names.ParseMAC(a.MAC); err != nil {
			bad("mac %q: %v", a.MAC, err)
		}
	}
	for _, args := range []map[string]string{a.Args, a.SchedulerArgs} {
		if mac, err := net.ParseMAC(args["MAC"]); err == nil && len(mac) == 6 {
			if err := names.CheckMAC(mac); err != nil {
				bad("args: MAC %q: %v", args["MAC"], err)
			}
		}
	}
}

func validateNames(a *allocnet.Allocation, bad func(string, ...any)) {
	if a.ContainerID != "" {
		if err := names.ValidateContainer(a.ContainerID); err != nil || len(a.ContainerID) > names.MaxID {
			bad("container ID %q: must be at most %d letters, digits, '_', '.' and '-', and begin with a letter or digit", a.ContainerID, names.MaxID)
		}
	}
	if a.Interface != "" {
		if err := names.ValidateNewInterface(a.Interface); err != nil {
			bad("interface %q: %v", a.Interface, err)
		}
	}
	if len(a.Conflists) > 0 && len(a.Networks) > 0 {
		bad("conflists and networks: give only one of them")
	}
	if len(a.Scope) > maxScope || !utf8.ValidString(a.Scope) || strings.ContainsFunc(a.Scope, unicode.IsControl) {
		bad("scope: must be at most %d bytes of UTF-8 without control characters", maxScope)
	}
	if err := names.ValidateLabels(a.Labels); err != nil {
		bad("%v", err)
	}
	if err := names.RefuseReserved(a.Labels); err != nil && !a.AllowReservedLabels {
		bad("%v", err)
	}
	if err := a.Policy.Validate(); err != nil {
		bad("%v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(a.Capabilities)) {
		if slices.Contains(ownCapabilities, name) {
			bad("capabilities: %q has a field of its own", name)
		}
		if !json.Valid(a.Capabilities[name]) {
			bad("capabilities: %q is not JSON", name)
		}
	}
}

// maxScope bounds the length of a scope in bytes.
const maxScope = 256

// ownCapabilities lists the capabilities for which Allocation has fields.
var ownCapabilities = []string{portmap.Capability, "dns", Bandwidth, "ips", "ipRanges", "mac", "cgroupPath", policyplugin.Capability}

func validateRanges(sets [][]allocnet.IPRange, bad func(string, ...any)) {
	for i, set := range sets {
		for j, r := range set {
			if _, err := netip.ParsePrefix(r.Subnet); err != nil {
				bad("ipRanges[%d][%d]: subnet %q: must be an address with a prefix length", i, j, r.Subnet)
			}
			for _, ip := range []string{r.RangeStart, r.RangeEnd, r.Gateway} {
				if addr, err := netip.ParseAddr(ip); ip != "" && (err != nil || addr.Zone() != "") {
					bad("ipRanges[%d][%d]: %q: not an address", i, j, ip)
				}
			}
		}
	}
}

// ignoreUnknown is the argument that makes plugins ignore arguments they do not know;
// see the CNI conventions.
const ignoreUnknown = "IgnoreUnknown"

// CNIArgs returns the CNI_ARGS of an allocation: IgnoreUnknown first, then the others
// sorted by key. SchedulerArgs take precedence over Args.
func CNIArgs(a *allocnet.Allocation) [][2]string {
	merged := map[string]string{ignoreUnknown: "true"}
	maps.Copy(merged, a.Args)
	maps.Copy(merged, a.SchedulerArgs)
	args := [][2]string{{ignoreUnknown, merged[ignoreUnknown]}}
	delete(merged, ignoreUnknown)
	for _, k := range slices.Sorted(maps.Keys(merged)) {
		args = append(args, [2]string{k, merged[k]})
	}
	return args
}

// CapabilityArgs returns the capability arguments of an allocation by the names of the
// CNI conventions. It omits capabilities that the allocation does not request.
func CapabilityArgs(a *allocnet.Allocation, ports []portmap.Mapping) (map[string]json.RawMessage, error) {
	given := map[string]any{}
	if len(ports) > 0 {
		unlabelled := slices.Clone(ports)
		for i := range unlabelled {
			unlabelled[i].Label = ""
		}
		given[portmap.Capability] = unlabelled
	}
	if a.DNS != nil {
		given["dns"] = a.DNS
	}
	if a.Bandwidth != nil {
		given[Bandwidth] = a.Bandwidth
	}
	if len(a.IPs) > 0 {
		given["ips"] = a.IPs
	}
	if len(a.IPRanges) > 0 {
		given["ipRanges"] = a.IPRanges
	}
	if a.MAC != "" {
		given["mac"] = a.MAC
	}
	if a.CgroupPath != "" {
		given["cgroupPath"] = a.CgroupPath
	}
	for name, value := range a.Capabilities {
		given[name] = value
	}
	if len(given) == 0 {
		return nil, nil // nil, as in a decoded record
	}
	encoded := make(map[string]json.RawMessage, len(given))
	for name, value := range given {
		data, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("encode capability %q: %w", name, err)
		}
		encoded[name] = data
	}
	return encoded, nil
}

// Bandwidth is the capability of limits.
const Bandwidth = native.Bandwidth

// IPs is the capability of requested addresses.
const IPs = "ips"

// validatePluginDirs reports directories that cannot be an entry of CNI_PATH.
func validatePluginDirs(dirs []string, bad func(string, ...any)) {
	if len(dirs) > allocnet.MaxPluginDirs {
		bad("pluginDirs: %d directories; at most %d are allowed", len(dirs), allocnet.MaxPluginDirs)
		return
	}
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) || len(dir) >= unix.PathMax || !utf8.ValidString(dir) || strings.ContainsAny(dir, ":\x00") {
			bad("pluginDirs: %.256q: must be an absolute path without ':' of less than %d bytes, in UTF-8", dir, unix.PathMax)
		}
	}
}
