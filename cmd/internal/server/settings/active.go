package settings

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"unicode/utf8"
)

// ActiveFile returns the file beside a daemon's socket that holds the daemon's active
// settings. The daemon writes it and leaves it when it ends, because the CNI plugin
// needs the same settings and cannot see the daemon's flags and environment.
func ActiveFile(socket string) string { return socket + ".settings" }

// Write writes all settings to a file for [Read]. The file is replaced atomically, unless it
// has this content already; only the user of this process can read it.
func (s *Settings) Write(file string) error {
	all := map[string][]string{}
	for i := range table {
		got := table[i].in(s).get()
		for _, text := range got {
			if !utf8.ValidString(text) {
				return fmt.Errorf("write settings to %q: %s: %q is not UTF-8: set another value", file, table[i].key(), text)
			}
		}
		all[table[i].key()] = got
	}
	data, err := json.MarshalIndent(all, "", "  ")
	data = append(data, '\n')
	if err == nil && has(file, data) {
		return nil
	}
	if err == nil {
		err = replace(file, data)
	}
	if err != nil {
		return fmt.Errorf("write settings to %q: %w", file, err)
	}
	return nil
}

// has reports whether a file that only the user of this process can read has this content.
func has(file string, data []byte) bool {
	info, err := os.Lstat(file)
	if err != nil || info.Mode() != activeMode {
		return false
	}
	there, err := contents(file, true)
	return err == nil && bytes.Equal(there, data)
}

const activeMode fs.FileMode = 0o600

// replace replaces a file. After an error no temporary file is left. The lock of the
// daemon's socket excludes concurrent calls.
func replace(file string, data []byte) error {
	made := file + ".new"
	if err := os.RemoveAll(made); err != nil { // left by a killed daemon
		return err
	}
	f, err := os.OpenFile(made, os.O_WRONLY|os.O_CREATE|os.O_EXCL, activeMode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(made, file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(made))
	}
	return nil
}

// Read reads a file that Write has written, also one of another version: it ignores
// settings that do not exist any more, and new settings have their defaults. It refuses a
// file that users other than root and this process's user can write. errors.Is finds
// fs.ErrNotExist.
func Read(file string) (Settings, error) {
	s := Default()
	data, err := contents(file, true)
	if err != nil {
		return s, fmt.Errorf("settings in %q: %w", file, err)
	}
	var all map[string][]string
	if err := json.Unmarshal(data, &all); err != nil {
		return s, fmt.Errorf("settings in %q: %w", file, err)
	}
	var errs []error
	for i := range table {
		if texts, ok := all[table[i].key()]; ok {
			errs = append(errs, problems(file, 0, &table[i], table[i].in(&s).set(texts))...)
		}
	}
	return s, errors.Join(errs...)
}
