// Command allocnet sets up and removes the networks of network namespaces from the
// command line. It makes the configurator library available to users and scripts.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/allocnet/allocnet/internal/engine/pluginexec"
)

// doubled is the time in which a second signal is ignored, because one request may be sent
// to the process and to its group. After that a second signal ends the process at once.
const doubled = time.Second

func main() {
	ctx := interruptible(context.Background())
	_ = os.Setenv("PATH", pluginexec.CompletePath(os.Getenv("PATH")))
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// interruptible returns a context that ends with the first SIGINT or SIGTERM.
func interruptible(ctx context.Context) context.Context {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() { time.AfterFunc(doubled, stop) })
	return ctx
}
