// Package confmanager maintains allocnet's own network configuration in a CNI
// configuration directory, according to the other files there.
//
// A runtime uses the first file of that directory. The manager writes a first file whose
// only plugin is allocnet, which delegates to the primary network: the named one, or the
// first that is valid and not allocnet's own. The manager never writes other files.
//
// # Events
//
// The primary network changes, or another one sorts before it: the manager updates its own
// file. It replaces the file atomically, and rewrites it if it is removed or edited.
//
// The primary network's file becomes invalid: its last valid content stays active and
// ready; State names the file, the position and the correction. A restart loses that
// content. Then the own file, which notes the file of the primary network, stays, and the
// manager is not ready until that file is repaired or removed.
//
// A plugin of the primary network is missing: the network stays the primary one and is not
// ready until the plugin is installed. The manager does not switch to another network,
// which the administrator did not choose.
//
// The primary network is removed and no other one is valid: the own file stays, so that no
// runtime switches to an unintended network. The manager is not ready and names the missing
// network.
//
// The readiness file is missing: until it exists for the first time, the manager writes
// nothing. When it is removed later, the manager is not ready but continues.
//
// The configuration directory is removed: networks stay active, and the manager is not
// ready. It does not create the directory, because that would break a rename of another
// directory to its path.
//
// # Watching
//
// The manager watches every directory on a path, including those of symlinks, so any part
// of the path may appear, disappear or be replaced. It reads the files once per burst of
// events, when the burst is over or has lasted a second. Changes without an event, such as
// a mount, are found within 30 seconds, or 2 seconds while not ready.
package confmanager
