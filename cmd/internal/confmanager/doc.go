// Package confmanager keeps allocnet's own network configuration in step with the
// others of a CNI configuration directory.
//
// A runtime takes the first file of that directory. The manager puts one there
// whose only plugin is allocnet, which delegates to the primary network: the one
// that is named, or the first that is valid and not allocnet's own. Files of
// others are never written.
//
// # What happens when
//
// The primary network changes, or another one sorts before it: the own file
// follows. It is written by rename, complete or not at all, and again whenever it
// is lost or somebody edits it.
//
// The primary network's file becomes invalid: the network stays in force as it
// was last read, and stays ready; State names the file, the place and what to do.
// After a restart that is lost. The own file, which notes where the primary network
// was, stays then, and the manager is not ready until the file is mended or removed.
//
// A plugin of the primary network is missing: it stays the primary one, and is not
// ready until the plugin appears. Any other network would be one that nobody meant.
//
// The primary network is gone, and no other is valid: the own file stays, so that
// no runtime turns to a network that nobody meant. The manager is not ready, and
// says which network is missing.
//
// The readiness file is missing: before it is there for the first time nothing is
// written. When it goes away later, the manager is not ready, and goes on.
//
// The configuration directory is gone: networks stay in force, and the manager is
// not ready. It does not make the directory, because whoever is about to rename
// another one into its place would fail.
//
// # Watching
//
// Every directory that a path leads through is watched, symlinks included, so that
// any part of it may appear, go away or be replaced. A burst of events is read
// once, when it is over or has lasted a second. Whatever no event tells, such as a
// mount, is found within half a minute, or two seconds while not ready.
package confmanager
