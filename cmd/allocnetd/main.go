// Command allocnetd is the host daemon. It sets up and removes the networks of
// allocations for the clients of its Unix socket, and maintains the host's CNI
// configuration.
package main

import (
	"context"
	"os"

	_ "github.com/allocnet/allocnet/cmd/internal/earlyhup" // the first package to be initialized
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
)

func main() {
	tuneGarbage(os.Environ())
	_ = os.Setenv("PATH", pluginexec.CompletePath(os.Getenv("PATH")))
	os.Exit(execute(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}
