package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/state/statedir"
	"github.com/allocnet/allocnet/internal/subnets"
)

// checkDisk looks at the file systems of records and leases, at the rights of the state
// directory, and for files of the future.
func checkDisk(_ context.Context, h *Host) (findings []Finding, err error) {
	var seen []unix.Fsid
	for _, dir := range h.stateDirs() {
		there, err := existing(dir)
		if err != nil {
			return findings, err
		}
		var s unix.Statfs_t
		if err := unix.Statfs(there, &s); err != nil {
			return findings, fmt.Errorf("statfs %s: %w", there, err)
		}
		if slices.Contains(seen, s.Fsid) && s.Fsid != (unix.Fsid{}) {
			continue
		}
		seen = append(seen, s.Fsid)
		findings = append(findings, full(dir, &s)...)
	}
	dir := h.StateDir
	if d, err := statedir.Resolve(dir); err == nil {
		dir = d.Path // operations follow symbolic links, too
	}
	if err := statedir.CheckDirs(dir); errors.Is(err, statedir.ErrNotOurs) {
		findings = append(findings, find("state-dir", h.StateDir, err.Error(), "check its content, then: chmod go-w "+dir))
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return findings, err
	}
	return append(findings, h.clock(time.Now())...), nil
}

// stateDirs returns the directories to which operations write.
func (h *Host) stateDirs() []string {
	dirs := []string{h.StateDir}
	for _, n := range h.Networks {
		pools, _ := subnets.Pools(n)
		for _, p := range pools {
			if !slices.Contains(dirs, p.DataDir) {
				dirs = append(dirs, p.DataDir)
			}
		}
	}
	return dirs
}

// existing returns a directory or its nearest parent that exists.
func existing(dir string) (string, error) {
	for {
		_, err := os.Stat(dir)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return dir, err
		}
		dir = filepath.Dir(dir)
	}
}

// The room that a file system must have: for records of some thousand allocations.
const (
	leastRoom  = 16 << 20 // bytes
	leastFiles = 4096
)

// full reports a file system without room, unless it is small and mostly empty.
func full(dir string, s *unix.Statfs_t) (findings []Finding) {
	room := s.Bavail * uint64(s.Bsize)
	if s.Blocks > 0 && room < leastRoom && s.Bavail < s.Blocks/2 {
		findings = append(findings, find("disk-full", dir, fmt.Sprintf("the file system of %s has %d KiB left", dir, room>>10), "free space, or move the directory (state_dir, dataDir): df "+dir))
	}
	if s.Files > 0 && s.Ffree < leastFiles && s.Ffree < s.Files/2 {
		findings = append(findings, find("disk-full", dir, fmt.Sprintf("the file system of %s can have %d more files", dir, s.Ffree), "remove files, or move the directory (state_dir, dataDir): df -i "+dir))
	}
	return findings
}

// future is how far clocks may differ.
const future = time.Minute

// clock reports records and configurations of the future: then the clock was set back, or
// was wrong when they were written.
func (h *Host) clock(now time.Time) []Finding {
	for i := range h.records {
		if r := &h.records[i]; r.Created.After(now.Add(future)) {
			return []Finding{clockFinding(fmt.Sprintf("the record of allocation %q was made at %s, and now is %s", r.ID, r.Created.UTC().Format(time.DateTime), now.UTC().Format(time.DateTime)))}
		}
	}
	for _, n := range h.Networks {
		if n.File == "" {
			continue
		}
		if info, err := os.Stat(n.File); err == nil && info.ModTime().After(now.Add(future)) {
			return []Finding{clockFinding(fmt.Sprintf("%s was written at %s, and now is %s", n.File, info.ModTime().UTC().Format(time.DateTime), now.UTC().Format(time.DateTime)))}
		}
	}
	return nil
}

func clockFinding(what string) Finding {
	return find("clock", "clock", what, "set the clock (timedatectl set-ntp true), or touch the file if the clock is right")
}
