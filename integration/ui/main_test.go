// Package ui tests the page of `allocnet ui` and of the daemon in Chromium, with a real
// daemon and real allocations on a private host: see the target ui-test of the Makefile.
package ui

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// programs is the directory of allocnet and allocnetd.
var programs string

func TestMain(m *testing.M) {
	os.Exit(privhost.Main(withPrograms{m}))
}

// withPrograms builds the programs before the tests run.
type withPrograms struct{ tests *testing.M }

func (w withPrograms) Run() int {
	var err error
	if programs, err = os.MkdirTemp("", "programs"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(programs)
	build := exec.Command("go", "build", "-C", "../../cmd", "-o", programs, "./allocnet", "./allocnetd")
	build.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the programs: %v: %s\n", err, out)
		return 1
	}
	return w.tests.Run()
}
