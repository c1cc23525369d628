package main

import (
	"runtime/debug"
	"slices"
	"strings"
)

// garbagePercent is the growth of the heap after which garbage is collected. The daemon
// keeps little, so that each of Go's collections, after 100%, came after few operations:
// they took a tenth of the processor time of an ADD.
const garbagePercent = 200

// tuneGarbage sets garbagePercent, unless the environment has GOGC.
func tuneGarbage(environ []string) {
	if !slices.ContainsFunc(environ, func(entry string) bool { return strings.HasPrefix(entry, "GOGC=") }) {
		debug.SetGCPercent(garbagePercent)
	}
}
