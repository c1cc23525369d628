package hostsnap

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// stateDirs are always part of a snapshot.
var stateDirs = []string{"/run", "/var/lib/cni"}

// maxContent is the size up to which a file's content is shown; of a bigger one there is a hash.
const maxContent = 160

// files collects what is in the directories.
func (c *collector) files() error {
	seen := map[string]bool{}
	for _, dir := range slices.Concat(stateDirs, c.opts.Dirs) {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || seen[path] || path == dir {
				return err
			}
			seen[path] = true
			return c.file(path, entry)
		})
		if err != nil {
			return fmt.Errorf("walk directory %q: %w", dir, err)
		}
	}
	return nil
}

// file collects one entry of a directory.
func (c *collector) file(path string, entry fs.DirEntry) error {
	info, err := entry.Info()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	mode := fmt.Sprintf("%04o", info.Mode().Perm())
	switch {
	case entry.IsDir():
		c.add(true, "directory", path, mode)
	case entry.Type()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		c.add(isIndex(path), "symlink", path, target)
	case !entry.Type().IsRegular():
		c.add(false, "special", path, info.Mode().String())
	case isNamespace(path):
		c.add(false, "netns", path)
	default:
		return c.regular(path, mode)
	}
	return nil
}

// isNamespace reports whether a namespace is mounted on path.
func isNamespace(path string) bool {
	var stat unix.Statfs_t
	return unix.Statfs(path, &stat) == nil && stat.Type == unix.NSFS_MAGIC
}

func (c *collector) regular(path, mode string) error {
	if isShared(path) {
		c.add(true, "file", path, mode)
		return nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	c.add(false, "file", path, mode, describeContent(data))
	return nil
}

// isShared reports whether a file serves all attachments, going by its name: locks, host-local's memory of the
// address that it gave last, and that of openings that were seen. Their contents mean nothing to anybody else.
func isShared(path string) bool {
	dir, name := filepath.Split(path)
	return filepath.Base(dir) == "forwarding" || name == "lock" || strings.HasSuffix(name, ".lock") || strings.HasPrefix(name, "last_reserved_ip.")
}

// isIndex reports whether a link is of the index that allocnet keeps beside leases. It holds nothing that the leases
// do not say, and is made anew where other plugins have changed these.
func isIndex(path string) bool { return strings.Contains(path, "/.allocnet/") }

// describeContent shows short text as it is.
func describeContent(data []byte) string {
	if len(data) <= maxContent && utf8.Valid(data) {
		return fmt.Sprintf("%q", data)
	}
	return fmt.Sprintf("%d bytes, sha256 %x", len(data), sha256.Sum256(data))
}

// mounts collects the mount points of the process, but for those that a mount over a
// directory above hides: they are not the host's to see or to change.
func (c *collector) mounts() error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	all := map[string]mount{}
	for entry := range strings.Lines(string(data)) {
		m, err := parseMount(entry)
		if err != nil {
			return err
		}
		all[m.id] = m
	}
	for _, m := range all {
		if !m.hidden(all) {
			c.add(m.point == "/run/netns", "mount", m.point, m.fsType)
		}
	}
	return nil
}

// mount is a line of mountinfo. parent is the ID of the mount that it is on.
type mount struct{ id, parent, point, fsType string }

// parseMount parses a line of mountinfo, as proc_pid_mountinfo(5) describes it.
func parseMount(entry string) (mount, error) {
	text, source, ok := strings.Cut(entry, " - ")
	fields, sourceFields := strings.Fields(text), strings.Fields(source)
	if !ok || len(fields) < 5 || len(sourceFields) < 1 {
		return mount{}, fmt.Errorf("parse mount %q: too few fields", entry)
	}
	return mount{id: fields[0], parent: fields[1], point: fields[4], fsType: sourceFields[0]}, nil
}

// hidden reports whether another mount is over a directory above, and this one is not on
// that.
func (m mount) hidden(all map[string]mount) bool {
	below := map[string]bool{}
	for at, ok := m, true; ok && !below[at.id]; at, ok = all[at.parent] {
		below[at.id] = true
	}
	for _, other := range all {
		if !below[other.id] && strings.HasPrefix(m.point, strings.TrimSuffix(other.point, "/")+"/") && m.point != other.point {
			return true
		}
	}
	return false
}

// watched are the settings that the plugins change for the whole host. Zero is the kernel's default.
var watched = []string{
	"net/ipv4/ip_forward",
	"net/ipv4/conf/all/route_localnet",
	"net/ipv4/conf/default/route_localnet",
	"net/ipv4/conf/all/rp_filter",
	"net/ipv4/conf/all/arp_notify",
	"net/ipv6/conf/all/forwarding",
	"net/bridge/bridge-nf-call-iptables",
	"net/bridge/bridge-nf-call-ip6tables",
}

// sysctls collects the settings that are not zero: so enabling forwarding appears, and disabling it goes away,
// which is never right.
func (c *collector) sysctls() error {
	for _, path := range watched {
		data, err := os.ReadFile(filepath.Join("/proc/sys", path))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		value := strings.TrimSpace(string(data))
		if value != "0" {
			c.add(strings.HasSuffix(path, "forward") || strings.HasSuffix(path, "forwarding"),
				"sysctl", strings.ReplaceAll(path, "/", "."), "=", value)
		}
	}
	return nil
}
