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
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	_ = os.Setenv("PATH", completePath(os.Getenv("PATH")))
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
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
