package iptables

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/allocnet/allocnet/internal/state/statedir"
)

// cache is what an AcceptRule saw of one family, so that it runs iptables only
// after a change. The holder of the family's lock uses it.
type cache struct {
	entries []*entry // the newest last
	// accepts is when the policy of the host was last seen to accept what it
	// forwards.
	accepts time.Time
}

// entry is what was seen of the rules with some admin chains.
type entry struct {
	admins []string
	// snapshot is what the kernel showed when they were exactly as Ensure makes
	// them; nil if that is not known.
	snapshot snapshot
	// listed is when iptables last showed them complete; zero if it did not.
	listed time.Time
}

const (
	// maxEntries is more than a host has admin chains.
	maxEntries = 16
	// policyTime is how long a look at the policy is valid.
	policyTime = 5 * time.Second
)

// of returns the entry of exactly these admin chains, which it makes if needed.
func (c *cache) of(admins []string) *entry {
	for _, e := range c.entries {
		if slices.Equal(e.admins, admins) {
			return e
		}
	}
	if len(c.entries) == maxEntries {
		c.entries = slices.Delete(c.entries, 0, 1)
	}
	e := &entry{admins: slices.Clone(admins)}
	c.entries = append(c.entries, e)
	return e
}

// any reports whether an entry that has all of the admin chains is usable.
func (c *cache) any(admins []string, usable func(*entry) bool) bool {
	return slices.ContainsFunc(c.entries, func(e *entry) bool {
		missing := slices.ContainsFunc(admins, func(a string) bool { return !slices.Contains(e.admins, a) })
		return !missing && usable(e)
	})
}

// unchanged reports whether the kernel shows the same rules as when the entry was
// made. If not, it forgets them.
func (e *entry) unchanged() bool {
	if e.snapshot != nil && !e.snapshot.unchanged() {
		*e = entry{admins: e.admins}
	}
	return e.snapshot != nil
}

type checkKey struct{}

// CheckOnce returns a context for checks of many allocations in a row: Check does
// not look again for rules that it found complete since, however long ago. It looks
// again for what was missing, so it sees what was repaired meanwhile.
func CheckOnce(ctx context.Context) context.Context {
	return context.WithValue(ctx, checkKey{}, time.Now())
}

// checkedIn reports whether the entry is valid for Check in a context.
func (e *entry) checkedIn(ctx context.Context) bool {
	began, once := ctx.Value(checkKey{}).(time.Time)
	return once && !e.listed.Before(began)
}

// cacheDir is a directory that tells later processes which rules were complete: an
// empty file for each set, named by a digest of what the kernel shows of them. Rules
// that bear that name are complete, whenever and wherever they are seen. The zero
// value is no directory.
type cacheDir string

// has reports whether rules with some admin chains are known to be complete.
func (d cacheDir) has(f *family, admins []string, s snapshot) bool {
	path, err := d.path(f, admins, s)
	if err != nil {
		return false
	}
	info, err := os.Lstat(path)
	return err == nil && info.Mode().IsRegular() && statedir.CheckDirs(string(d)) == nil
}

// add notes that rules are complete. If it cannot, later processes run iptables.
func (d cacheDir) add(f *family, admins []string, s snapshot) {
	path, err := d.path(f, admins, s)
	if err != nil || os.MkdirAll(string(d), 0o700) != nil || statedir.CheckDirs(string(d)) != nil {
		return
	}
	d.trim()
	if file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err == nil {
		_ = file.Close()
	}
}

// maxFiles is more than a host has sets of rules at one time.
const maxFiles = 256

// trim removes all files where there are too many: rules that are made again have
// other names.
func (d cacheDir) trim() {
	entries, err := os.ReadDir(string(d))
	if err != nil || len(entries) < maxFiles {
		return
	}
	for _, e := range entries {
		_ = os.Remove(filepath.Join(string(d), e.Name()))
	}
}

// errNoDigest: the kernel shows too little of the rules to know them again.
var errNoDigest = errors.New("no digest of rules of the legacy iptables")

// path is the file of rules as one program, which may be exchanged for the other
// variant, shows them.
func (d cacheDir) path(f *family, admins []string, s snapshot) (string, error) {
	seen, ok := s.(nftSnapshot)
	if !ok || d == "" {
		return "", errNoDigest
	}
	p, err := installed(f.command)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%d %q %d %d %q\n", f.Family, p.target, p.size, p.modified, admins)
	for _, r := range seen.rules {
		fmt.Fprintf(sum, "%q %q\n", r.chain, r.text)
	}
	return filepath.Join(string(d), hex.EncodeToString(sum.Sum(nil)[:16])), nil
}

// programs is what the process saw of installed programs: what they said of their
// version, and what was opened.
var programs struct{ versions, commands sync.Map }

// once returns what look found of a program the last time, or now.
func once[T any](seen *sync.Map, p program, look func() (T, error)) (T, error) {
	if known, ok := seen.Load(p); ok {
		return known.(T), nil
	}
	found, err := look()
	if err == nil {
		seen.Store(p, found)
	}
	return found, err
}
