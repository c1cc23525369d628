package tuning

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/smallfile"
	"github.com/allocnet/allocnet/sandbox"
)

// backup is the content of a backup file: the attributes that the interface of
// one attachment had before ADD.
type backup struct {
	attributes
	// Owner identifies the attachment for GC. The reference plugin does not
	// write it and ignores it.
	Owner string `json:"owner,omitempty"`
	// Netns is the network namespace of the interface. Backups of the reference plugin, and of
	// earlier versions, do not have it.
	Netns *sandbox.Identity `json:"netns,omitempty"`
}

const (
	backupSuffix = ".json"
	// draftSuffix is the suffix of an incomplete backup.
	draftSuffix = ".tmp"

	maxBackup = 64 << 10
)

// backupFile returns the path of the attachment's backup. Container ID and interface name must have been
// validated. Attachments with the same text of both have different files: no name of an interface
// contains a percent sign.
func (t *tuning) backupFile(c *sdk.CmdArgs) string {
	return t.backupOf(c.ContainerID, strings.ReplaceAll(c.IfName, "_", "%5F"))
}

func (t *tuning) backupOf(id, ifName string) string {
	return filepath.Join(t.DataDir, id+"_"+ifName+backupSuffix)
}

// find reads the backup of the attachment, and returns its path. It may have been written by the reference
// plugin or an earlier version, which use the name of the interface as it is.
func (t *tuning) find(c *sdk.CmdArgs) (file string, b *backup, err error) {
	file = t.backupFile(c)
	b, err = readBackup(file)
	plain := t.backupOf(c.ContainerID, c.IfName)
	if b != nil || err != nil || plain == file {
		return file, b, err
	}
	if b, err = readBackup(plain); err != nil {
		return plain, nil, err
	}
	if b == nil || b.Owner != "" && b.Owner != c.Owner(t.Name).String() {
		return file, nil, nil
	}
	return plain, b, nil
}

// write replaces the file atomically.
func (b *backup) write(file string) error {
	data, err := json.MarshalIndent(b, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("create the directory of backups: %w", err)
	}
	if err := smallfile.ReplaceOwn(file, file+draftSuffix, data); err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	return nil
}

// readBackup reads a backup. It returns nil if there is none or if it cannot be
// parsed.
func readBackup(file string) (*backup, error) {
	data, err := smallfile.ReadOwn(file, maxBackup)
	if isAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read backup: %w", err)
	}
	b := &backup{}
	if json.Unmarshal(data, b) != nil {
		return nil, nil
	}
	return b, nil
}

// removeBackup removes the backup and an incomplete one.
func removeBackup(file string) error {
	return errors.Join(remove(file), remove(file+draftSuffix))
}

func remove(file string) error {
	if err := os.Remove(file); err != nil && !isAbsent(err) {
		return fmt.Errorf("remove backup: %w", err)
	}
	return nil
}

// isAbsent reports whether an error means that the file does not exist or cannot exist
// at that path.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENAMETOOLONG)
}

// stale returns the backups in a directory whose owner the function of selects.
func stale(dir string, of func(names.Owner) bool) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list backups: %w", err)
	}
	var found []string
	var errs []error
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), draftSuffix)
		if !e.Type().IsRegular() || filepath.Ext(name) != backupSuffix {
			continue
		}
		file := filepath.Join(dir, e.Name())
		b, err := readBackup(file)
		if err != nil {
			errs = append(errs, err)
		} else if b != nil {
			if owner, ok := names.ParseOwner(b.Owner); ok && of(owner) {
				found = append(found, file)
			}
		}
	}
	return found, errors.Join(errs...)
}
