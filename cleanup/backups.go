package cleanup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/smallfile"
)

const (
	defaultBackupDir = "/run/cni/tuning"
	backupSuffix     = ".json"
	draftSuffix      = ".tmp" // of a backup that was not renamed before a crash
	maxBackup        = 1 << 16
)

// backupFinder finds the files of the tuning plugin, which contain the attributes that
// each interface had before ADD. The reference plugin leaves a file if the namespace or
// the interface no longer exists at DEL.
type backupFinder struct {
	*search
	found []ownFile
}

func (f *backupFinder) find(context.Context) ([]Leftover, error) {
	f.found = nil
	candidates, err := f.candidates()
	errs := []error{err}
	for _, file := range candidates {
		ours, err := f.isOurs(file)
		errs = append(errs, err)
		if ours {
			f.found = append(f.found, file)
		}
	}
	return leftoverFiles(f.found), errors.Join(errs...)
}

// candidates returns the possible backup files of the allocation.
func (f *backupFinder) candidates() ([]ownFile, error) {
	if len(f.attachments) == 0 {
		return f.byID()
	}
	var files []ownFile
	for _, a := range f.attachments {
		for _, dir := range a.scope.backupDirs {
			for _, suffix := range []string{backupSuffix, backupSuffix + draftSuffix} {
				file := ownFile{kind: KindBackup, dir: dir, name: f.target.ID + "_" + a.IfName + suffix, network: a.Network}
				if isFileName(file.name) && !slices.ContainsFunc(files, func(o ownFile) bool { return o.path() == file.path() }) {
					files = append(files, file)
				}
			}
		}
	}
	return files, nil
}

// byID returns the files in the default directory whose names contain the ID, for any
// interface without an underscore. With one, the name would be ambiguous.
func (f *backupFinder) byID() ([]ownFile, error) {
	entries, err := os.ReadDir(defaultBackupDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list backups: %w", err)
	}
	var files []ownFile
	for _, entry := range entries {
		rest, found := strings.CutPrefix(entry.Name(), f.target.ID+"_")
		ifName, isBackup := strings.CutSuffix(strings.TrimSuffix(rest, draftSuffix), backupSuffix)
		if found && isBackup && f.hasInterface(ifName) && ifName != "" && !strings.Contains(ifName, "_") {
			files = append(files, ownFile{kind: KindBackup, dir: defaultBackupDir, name: entry.Name()})
		}
	}
	return files, nil
}

// isOurs reports whether a file exists and does not name another owner. Only the native
// plugin records the owner.
func (f *backupFinder) isOurs(file ownFile) (bool, error) {
	data, err := smallfile.ReadOwn(file.path(), maxBackup)
	if isNone(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read backup: %w", err)
	}
	var content struct {
		Owner string `json:"owner"`
	}
	_ = json.Unmarshal(data, &content) // a file truncated by a crash is identified by its name
	owner, noted := names.ParseOwner(content.Owner)
	if !noted {
		return true, nil
	}
	if f.instanceErr != nil {
		return false, f.instanceErr
	}
	return f.isOwner(owner), nil
}

func (f *backupFinder) remove(context.Context) ([]Leftover, error) { return removeFiles(f.found) }
