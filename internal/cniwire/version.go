package cniwire

import (
	"encoding/json"
	"slices"

	"github.com/allocnet/allocnet/internal/cniwire/thin"
)

// Versions are those of the CNI specification that the plugin speaks, oldest first.
var Versions = thin.Versions

// Newest is the last of the Versions.
const Newest = "1.1.0"

// Supports reports whether a version is among the Versions.
func Supports(version string) bool { return slices.Contains(Versions, version) }

// ReportVersion returns the version in which to answer a configuration of that
// version: its own, or the newest where it has none that is known.
func ReportVersion(version string) string { return thin.ReportVersion(version) }

// VersionResult is the answer to VERSION: the version of the question, and all.
func VersionResult(version string) json.RawMessage { return thin.VersionResult(version) }

// AtLeast reports whether one of the Versions is not older than another.
func AtLeast(version, other string) bool {
	return slices.Index(Versions, version) >= slices.Index(Versions, other)
}
