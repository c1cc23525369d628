// Package sdk is what the native CNI plugins have in common: how one is
// called (Call), how its configuration is read (Decode, Common), how libcni
// reaches it inside the process (Exec), and how the same code answers as a
// plugin binary (Main).
//
// Every plugin is a package below this one and imports no other plugin.
package sdk
