package journal

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/state/statedir"
)

// Read returns the entries of the journal below a state directory, oldest first. It skips
// lines that are incomplete because of a crash. Without a journal there are no entries.
func Read(stateDir string, q allocnet.HistoryQuery) ([]allocnet.HistoryEntry, error) {
	if err := statedir.CheckDirs(stateDir); err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	now, before := files(stateDir)
	entries := []allocnet.HistoryEntry{}
	for _, file := range []string{before, now} {
		err := read(file, func(e allocnet.HistoryEntry) {
			if q.ID == "" || e.ID == q.ID {
				entries = append(entries, e)
			}
			if q.Limit > 0 && len(entries) >= 2*q.Limit {
				entries = append(entries[:0], entries[len(entries)-q.Limit:]...)
			}
		})
		if err != nil {
			return nil, fmt.Errorf("read journal %s: %w", file, err)
		}
	}
	if q.Limit > 0 && len(entries) > q.Limit {
		entries = entries[len(entries)-q.Limit:]
	}
	return entries, nil
}

func read(file string, each func(allocnet.HistoryEntry)) error {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := statedir.CheckFile(int(f.Fd()), file); err != nil {
		return err
	}
	lines := bufio.NewReaderSize(f, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var e allocnet.HistoryEntry
		if json.Unmarshal(line, &e) == nil && e.ID != "" {
			each(e)
		}
	}
}
