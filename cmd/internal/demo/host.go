package demo

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// prepareHost takes a snapshot of the host and creates the external machine.
func (d *demo) prepareHost(ctx context.Context) error {
	if err := d.steps.do(ctx, "take a snapshot", d.snapshot); err != nil {
		return err
	}
	if d.OnHost && !d.hadBridge {
		d.steps.later("remove the bridge "+conflist.EmbeddedBridge, d.removeBridge)
	}
	return d.makeOutside(ctx)
}

func (d *demo) snapshot(context.Context) (string, error) {
	snapshot, err := hostsnap.Take(d.snapshotOptions())
	if err != nil {
		return "", err
	}
	if d.hadBridge, err = bridgeExists(); err != nil {
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

func bridgeExists() (bool, error) {
	_, err := netlink.LinkByName(conflist.EmbeddedBridge)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find bridge %q: %w", conflist.EmbeddedBridge, err)
	}
	return true, nil
}

// removeBridge removes the bridge that the first allocation made, unless it has
// ports of other programs' allocations.
func (d *demo) removeBridge(context.Context) (string, error) {
	bridge, err := netlink.LinkByName(conflist.EmbeddedBridge)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return "it was never made", nil
	}
	if err != nil {
		return "", fmt.Errorf("find bridge %q: %w", conflist.EmbeddedBridge, err)
	}
	links, err := retry.List(netlink.LinkList)
	if err != nil {
		return "", fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		if l.Attrs().MasterIndex == bridge.Attrs().Index {
			return "it stays: " + l.Attrs().Name + " is on it", nil
		}
	}
	if err := netlink.LinkDel(bridge); err != nil {
		return "", fmt.Errorf("remove bridge %q: %w", conflist.EmbeddedBridge, err)
	}
	return "it was not there before", nil
}
