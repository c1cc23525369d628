// Package sdk is the common part of allocnet's native CNI plugins, those written
// in Go as part of this module. It defines the plugin interface (Plugin), the
// arguments of a command (CmdArgs) and the reading of configurations (Decode,
// Common). Exec runs plugins in-process; Main runs the same code as a plugin
// binary.
//
// Each plugin is a package next to this one and imports no other plugin. Its
// errors do not name the plugin: Exec adds the name once.
package sdk
