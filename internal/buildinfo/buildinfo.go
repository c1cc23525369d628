// Package buildinfo returns the version from which a program was built.
//
// Go records the version of the main module and the commit of the checkout in
// a program. A release is built without both, so that the same sources give
// the same bytes wherever they are; the linker sets the variables of this
// package instead.
package buildinfo

import "runtime/debug"

// These are set with -ldflags "-X ..." by the target release of the Makefile:
// the version with a leading "v", the commit as hexadecimal digits, and its
// date in RFC 3339.
var version, commit, date string

// Read returns the build information of this program, as debug.ReadBuildInfo
// does, with the version, commit and date of a release where the program is
// one. It returns nil for a program that was built without modules. The caller
// owns the result.
func Read() *debug.BuildInfo {
	info, _ := debug.ReadBuildInfo()
	return released(info, version, commit, date)
}

// released returns the information with that of a release in place of the
// checkout's. Empty values change nothing.
func released(info *debug.BuildInfo, version, commit, date string) *debug.BuildInfo {
	if info == nil || version == "" {
		return info
	}
	info.Main.Version = version
	settings := make([]debug.BuildSetting, 0, len(info.Settings)+2)
	for _, s := range info.Settings {
		if s.Key != "vcs.revision" && s.Key != "vcs.time" && s.Key != "vcs.modified" {
			settings = append(settings, s)
		}
	}
	for _, s := range []debug.BuildSetting{{Key: "vcs.revision", Value: commit}, {Key: "vcs.time", Value: date}} {
		if s.Value != "" {
			settings = append(settings, s)
		}
	}
	info.Settings = settings
	return info
}
