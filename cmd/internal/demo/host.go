package demo

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/allocnet/allocnet/internal/hostsnap"
)

// prepareHost takes a snapshot of the host and creates the external machine.
func (d *demo) prepareHost(ctx context.Context) error {
	if err := d.steps.do(ctx, "take a snapshot", d.snapshot); err != nil {
		return err
	}
	return d.makeOutside(ctx)
}

func (d *demo) snapshot(context.Context) (string, error) {
	snapshot, err := hostsnap.Take(d.snapshotOptions())
	if err != nil {
		return "", err
	}
	d.before = &snapshot
	return fmt.Sprintf("%d objects: links, rules, files, ...", strings.Count(snapshot.String(), "\n")), nil
}

// snapshotOptions ignores what the first use of a network leaves for later
// ones.
func (d *demo) snapshotOptions() hostsnap.Options {
	warm := "file " + filepath.Join(d.Config.StateDir, "warm") + "/"
	claims := "file " + filepath.Join(d.Config.StateDir, "claims", "complete")
	return hostsnap.Options{
		Dirs: []string{d.Config.StateDir}, Persistent: true,
		Ignore: func(line string) bool { return strings.HasPrefix(line, warm) || strings.HasPrefix(line, claims) },
	}
}

// ofConcern removes changes that other programs made to their files on a real
// host.
func (d *demo) ofConcern(diff string) string {
	var kept strings.Builder
	for line := range strings.Lines(diff) {
		if !d.OnHost || !d.isForeignFile(line) {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// isForeignFile parses a line of a difference: sign, kind, path, and so on.
func (d *demo) isForeignFile(line string) bool {
	fields := strings.Fields(strings.TrimLeft(line, "+- "))
	if len(fields) < 2 || !filepath.IsAbs(fields[1]) {
		return false
	}
	for _, dir := range []string{d.Config.StateDir, "/run/netns", "/var/lib/cni"} {
		if rest, below := strings.CutPrefix(fields[1], dir); below && (rest == "" || rest[0] == '/') {
			return false
		}
	}
	return true
}
