// Package earlyhup makes a daemon that imports it ignore SIGHUP while it starts. Package main
// is initialized last, some 20 ms after the start of the process; until then a SIGHUP, which
// asks a running daemon to read its settings again, would end it. Go initializes packages that
// depend on nothing else in the order of their import paths, so this one comes before the
// libraries that take the time.
package earlyhup

import (
	"os"
	"os/signal"
	"syscall"
)

func init() {
	if runs(os.Args) {
		signal.Ignore(syscall.SIGHUP)
	}
}

// runs reports whether a command line runs the daemon: its other commands end with their
// terminal.
func runs(args []string) bool {
	return len(args) < 2 || args[1] == "run" || args[1] != "" && args[1][0] == '-'
}
