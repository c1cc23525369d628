// Command allocnet gives network namespaces their network from the command
// line: the configurator library for people and scripts.
package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// doubled is how long a signal may arrive twice: sent to the process and to its
// group. After that a second one ends the process at once.
const doubled = time.Second

func main() {
	ctx := interruptible(context.Background())
	_ = os.Setenv("PATH", completePath(os.Getenv("PATH")))
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// interruptible ends with the first signal that asks the process to end.
func interruptible(ctx context.Context) context.Context {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() { time.AfterFunc(doubled, stop) })
	return ctx
}

// completePath adds the directories of system commands, which an ordinary
// user's PATH often lacks: plugins look for iptables in it.
func completePath(path string) string {
	dirs := filepath.SplitList(path)
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return strings.Join(dirs, string(filepath.ListSeparator))
}
