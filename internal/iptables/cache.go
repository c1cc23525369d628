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

// cache contains what an AcceptRule found out about one family, so that it runs
// iptables only after a change. It may be used only while the family's lock is held.
type cache struct {
	entries []*entry // the newest last
	// accepts is the time at which the policy of the host was last found to accept
	// forwarded packets.
	accepts time.Time
}

// entry contains what was found out about the rules with one list of admin chains.
type entry struct {
	admins []string
	// snapshot is what the kernel showed when the rules were exactly as Ensure
	// makes them; nil if that is not known.
	snapshot snapshot
	// found is the time before which the rules were last found complete; zero if they
	// never were.
	found time.Time
}

const (
	// maxEntries is more than the number of lists of admin chains on a host.
	maxEntries = 16
	// policyTime is how long the policy is not read again.
	policyTime = 5 * time.Second
)

// of returns the entry for exactly these admin chains. It makes the entry if there is
// none.
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

// any reports whether there is a usable entry that contains all of the admin chains.
func (c *cache) any(admins []string, usable func(*entry) bool) bool {
	return slices.ContainsFunc(c.entries, func(e *entry) bool {
		missing := slices.ContainsFunc(admins, func(a string) bool { return !slices.Contains(e.admins, a) })
		return !missing && usable(e)
	})
}

// unchanged reports whether the kernel shows the same rules as when the entry was made.
// If not, it empties the entry.
func (e *entry) unchanged() bool {
	if e.snapshot != nil && !e.snapshot.unchanged() {
		*e = entry{admins: e.admins}
	}
	return e.snapshot != nil
}

type checkKey struct{}

// CheckOnce returns a context for the checks of many allocations in a row. In this
// context, Check does not look again for rules that it has found complete since the context
// was made. It looks for missing rules again, so it sees repairs made in the meantime.
func CheckOnce(ctx context.Context) context.Context {
	return context.WithValue(ctx, checkKey{}, time.Now())
}

// checkedIn reports whether Check may use the entry in a context.
func (e *entry) checkedIn(ctx context.Context) bool {
	began, once := ctx.Value(checkKey{}).(time.Time)
	return once && !e.found.Before(began)
}

// cacheDir is a directory that records complete rules for later processes. It contains
// an empty file for each set of rules, named by a digest of what the kernel shows of
// the rules. Rules with such a digest are complete, whenever and wherever they are
// found. The zero value is no directory.
type cacheDir string

// has reports whether the directory records that rules with some admin chains are
// complete.
func (d cacheDir) has(f *family, admins []string, s snapshot) bool {
	path, err := d.path(f, admins, s)
	if err != nil {
		return false
	}
	info, err := os.Lstat(path)
	return err == nil && info.Mode().IsRegular() && statedir.CheckDirs(string(d)) == nil
}

// add records that rules are complete. If it fails, later processes run iptables.
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

// maxFiles is more than the number of sets of rules that a host has at one time.
const maxFiles = 256

// trim removes all files if there are too many. Every change of the rules adds a file
// with another name.
func (d cacheDir) trim() {
	entries, err := os.ReadDir(string(d))
	if err != nil || len(entries) < maxFiles {
		return
	}
	for _, e := range entries {
		_ = os.Remove(filepath.Join(string(d), e.Name()))
	}
}

// errNoDigest: the kernel shows too little of the rules to recognise them.
var errNoDigest = errors.New("no digest of rules of the legacy iptables")

// path returns the file for rules. Its name also depends on the installed program,
// which can be replaced by the other variant.
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

// programs caches what the process found out about installed programs: the output of
// --version.
var programs struct{ versions sync.Map }

// once returns the cached result of look for a program, or calls look and caches its
// result. It does not cache errors.
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
