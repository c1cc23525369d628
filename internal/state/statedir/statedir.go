// Package statedir identifies state directories. All processes that use one
// directory, by whatever path, are one owner of objects in the kernel; processes
// that use another directory are another owner.
package statedir

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
)

// Dir is a state directory.
type Dir struct {
	// Path is the path without symbolic links.
	Path string
	// Instance identifies the directory in the owners of kernel objects, see
	// names.Owner. It is a hash of the file system and of the directory's path in it,
	// so it is the same through symbolic links and bind mounts, and after the
	// directory was removed and created again. It is "" for the default directory.
	Instance string
	// Key equals Instance, but is not empty for the default directory: it distinguishes
	// the default directories of several mount namespaces.
	Key string
}

// Resolve returns the directory at an absolute path; "" is the default path. The
// directory need not exist: missing parts of the path are used as written. Resolve
// returns an error if /proc cannot be read.
func Resolve(path string) (Dir, error) {
	if path == "" {
		path = names.DefaultStateDir
	}
	found, err := locate(path)
	if err != nil {
		return Dir{}, fmt.Errorf("resolve state directory %q: %w", path, err)
	}
	usual, err := locate(names.DefaultStateDir)
	if err != nil {
		return Dir{}, fmt.Errorf("resolve state directory %q: %w", names.DefaultStateDir, err)
	}
	d := Dir{Path: found.path, Key: hash(found.device + "\x00" + found.inside)}
	if found.place != usual.place {
		d.Instance = d.Key
	}
	return d, nil
}

// FormerInstance returns the Instance that earlier versions derived from the text of a
// path.
func FormerInstance(path string) string {
	if path == "" || path == names.DefaultStateDir {
		return ""
	}
	return hash(path)
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:4])
}

// location is the path of a directory and its place.
type location struct {
	path string
	place
}

// place identifies a directory by its file system, as the text of the device number,
// and the path in it.
type place struct{ device, inside string }

// below returns the location of a name in the directory.
func (l location) below(name string) location {
	l.path, l.inside = filepath.Join(l.path, name), filepath.Join(l.inside, name)
	return l
}

// maxLinks is the kernel's limit of symbolic links in a path; see path_resolution(7).
const maxLinks = 40

// locate returns the location of a directory. If it does not exist, locate resolves the
// closest existing parent and appends the rest of the path.
func locate(path string) (location, error) {
	path = filepath.Clean(path)
	missing := ""
	for links := 0; ; {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err == nil {
			defer unix.Close(fd)
			l, err := locateOpen(fd)
			return l.below(missing), err
		}
		if target, err := os.Readlink(path); err == nil && links < maxLinks {
			links++ // a link to a missing target
			if !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(path), target)
			}
			path = target
			continue
		}
		if path == "/" {
			return location{}, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		path, missing = filepath.Dir(path), filepath.Join(filepath.Base(path), missing)
	}
}

// key identifies an open directory in the cache. The mount ID alone is not enough,
// because the kernel reuses it.
type key struct {
	mount         string
	device, inode uint64
	path          string
}

// known caches places, because the list of mounts grows with the number of network
// namespaces.
var known = struct {
	sync.Mutex
	places map[key]place
}{places: map[key]place{}}

// maxKnown bounds the cache.
const maxKnown = 64

func locateOpen(fd int) (location, error) {
	k, err := keyOf(fd)
	if err != nil {
		return location{}, err
	}
	known.Lock()
	defer known.Unlock()
	if p, ok := known.places[k]; ok {
		return location{path: k.path, place: p}, nil
	}
	p, err := placeOf(k)
	if err != nil {
		return location{}, err
	}
	if len(known.places) >= maxKnown {
		clear(known.places)
	}
	known.places[k] = p
	return location{path: k.path, place: p}, nil
}

func keyOf(fd int) (k key, err error) {
	if k.path, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err != nil {
		return key{}, err
	}
	var stat unix.Statx_t
	err = unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_MNT_ID, &stat)
	if err != nil || stat.Mask&unix.STATX_MNT_ID == 0 {
		return k, k.identify(fd)
	}
	k.device, k.inode = unix.Mkdev(stat.Dev_major, stat.Dev_minor), stat.Ino
	k.mount = strconv.FormatUint(stat.Mnt_id, 10)
	return k, nil
}

// identify fills the key without statx, which lacks the mount ID before Linux 5.8. It
// takes several times as long.
func (k *key) identify(fd int) error {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	k.device, k.inode = stat.Dev, stat.Ino
	info, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(info)) {
		if mount, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			k.mount = strings.TrimSpace(mount)
			return nil
		}
	}
	return errors.New("no mnt_id in /proc/self/fdinfo")
}

// placeOf looks up the mount of a directory. A mount is missing in the list if its root
// is outside of the root of the process, as after chroot(2). In that case the place
// consists of the device and the path.
func placeOf(k key) (place, error) {
	const tries = 3 // concurrent mounts and unmounts may hide entries of the list
	for range tries {
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			return place{}, err
		}
		for line := range bytes.Lines(mounts) {
			if p, ok := placeBelow(string(line), k); ok {
				return p, nil
			}
		}
	}
	return place{device: fmt.Sprintf("%d:%d", unix.Major(k.device), unix.Minor(k.device)), inside: k.path}, nil
}

// placeBelow parses a line of mountinfo; see proc_pid_mountinfo(5).
func placeBelow(line string, k key) (place, bool) {
	fields := strings.Fields(line)
	if len(fields) < 5 || fields[0] != k.mount {
		return place{}, false
	}
	rest, ok := strings.CutPrefix(k.path, unescaped(fields[4]))
	return place{device: fields[2], inside: filepath.Join(unescaped(fields[3]), rest)}, ok
}

// unescaped reverts the kernel's escapes in a field of mountinfo.
var unescaped = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#").Replace
