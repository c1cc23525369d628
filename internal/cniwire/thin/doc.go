// Package thin is the plugin's side of package cniwire. The plugin is a process per
// operation: what a package takes to start, it takes every time. Packages fmt,
// encoding/json and net together take longer than all that the plugin does, so none
// of them is used here, nor by what is imported.
package thin
