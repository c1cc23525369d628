// Command allocnetd is the host daemon: it gives allocations their networks for
// whoever asks on its unix socket, and keeps the host's CNI configuration.
package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	_ = os.Setenv("PATH", completePath(os.Getenv("PATH")))
	os.Exit(execute(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// completePath adds the directories of system commands, which an ordinary user's
// PATH often lacks: plugins look for iptables in it.
func completePath(path string) string {
	dirs := filepath.SplitList(path)
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return strings.Join(dirs, string(filepath.ListSeparator))
}
