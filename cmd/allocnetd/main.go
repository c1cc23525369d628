// Command allocnetd is the host daemon: it gives allocations their networks for
// whoever asks on its unix socket, and keeps the host's CNI configuration.
package main

import (
	"context"
	"os"

	"github.com/allocnet/allocnet/internal/engine/pluginexec"
)

func main() {
	_ = os.Setenv("PATH", pluginexec.CompletePath(os.Getenv("PATH")))
	os.Exit(execute(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}
