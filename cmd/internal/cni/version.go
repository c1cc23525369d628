package cni

import (
	"encoding/json"
	"slices"
)

// Versions are the versions of the CNI specification that the plugin supports, oldest
// first.
var Versions = []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", Newest}

// Newest is the newest of the Versions.
const Newest = "1.1.0"

// Supports reports whether a version is one of the Versions.
func Supports(version string) bool { return slices.Contains(Versions, version) }

// ReportVersion returns the version in which to answer a configuration of the given
// version: the same version, or Newest if the plugin does not support it.
func ReportVersion(version string) string {
	if Supports(version) {
		return version
	}
	return Newest
}

// VersionResult returns the result of VERSION for a configuration of the given version.
func VersionResult(version string) json.RawMessage {
	data, err := json.Marshal(struct {
		CNIVersion        string   `json:"cniVersion"`
		SupportedVersions []string `json:"supportedVersions"`
	}{ReportVersion(version), Versions})
	if err != nil {
		panic(err) // text can be encoded
	}
	return data
}

// AtLeast reports whether version is not older than other; both must be among Versions.
func AtLeast(version, other string) bool {
	return slices.Index(Versions, version) >= slices.Index(Versions, other)
}
