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

// maxContent is the largest size of a file whose content is shown. A snapshot
// has a hash of larger files.
const maxContent = 160

// files collects the entries of the directories.
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
	if entry.Name() == switchesFile {
		c.switched = true
		return nil
	}
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

// isShared reports, by its name, whether all attachments share a file: lock
// files, host-local's files with the last reserved address, the times at which addresses were released, the markers of
// forward-accept rules, the record of bridges of the host, the subnets of the embedded network,
// and the history of operations. Their contents matter only
// to the programs that write them.
func isShared(path string) bool {
	dir, name := filepath.Split(path)
	return strings.HasPrefix(name, "journal.jsonl") || slices.Contains([]string{"forwarding", "bridges"}, filepath.Base(dir)) ||
		slices.Contains([]string{"lock", "subnets", ".released"}, name) || strings.HasSuffix(name, ".lock") || strings.HasPrefix(name, "last_reserved_ip.")
}

// isIndex reports whether path is a link of the index that allocnet keeps next
// to leases. The index duplicates the leases, and is rebuilt after other
// plugins changed them.
func isIndex(path string) bool { return strings.Contains(path, "/.allocnet/") }

// describeContent returns short text as it is, and the size and hash of other
// data.
func describeContent(data []byte) string {
	if len(data) <= maxContent && utf8.Valid(data) {
		return fmt.Sprintf("%q", data)
	}
	return fmt.Sprintf("%d bytes, sha256 %x", len(data), sha256.Sum256(data))
}

// mounts collects the visible mount points of the process. The host can neither
// see nor change a mount point that another mount covers.
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

// mount is a line of mountinfo. parent is the ID of the mount that it is
// mounted on.
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

// hidden reports whether another mount covers this one, or a mount that this one
// is on: the other mount has the same parent and is over a directory above.
func (m mount) hidden(all map[string]mount) bool {
	seen := map[string]bool{}
	for at, ok := m, true; ok && !seen[at.id]; at, ok = all[at.parent] {
		seen[at.id] = true
		for _, other := range all {
			above := strings.HasPrefix(at.point, strings.TrimSuffix(other.point, "/")+"/")
			if other.parent == at.parent && above && other.point != at.point {
				return true
			}
		}
	}
	return false
}

// switchesFile is the name of the record of the switches that allocations need. While a state directory has it, forwarding is
// on for them, and is going to be set back: see forwarding.
const switchesFile = "switches.json"

// forwarding reports whether a line is that of a switch of forwarding. With the record in one of two snapshots, it is no
// difference.
func forwarding(l line) bool {
	return strings.HasPrefix(l.text, "sysctl net.ipv4.ip_forward ") || strings.HasPrefix(l.text, "sysctl net.ipv6.conf.all.forwarding ")
}

// watched are the host-wide sysctls that plugins change. The kernel's default
// is 0.
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

// sysctls collects the sysctls that are not zero. So Diff reports enabled
// forwarding as an added line, and disabled forwarding as a removed line, which
// is always a defect.
func (c *collector) sysctls() error {
	for _, path := range watched {
		data, err := os.ReadFile(filepath.Join("/proc/sys", path))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		value, forwards := strings.TrimSpace(string(data)), strings.HasSuffix(path, "forward") || strings.HasSuffix(path, "forwarding")
		if value != "0" {
			c.add(forwards, "sysctl", strings.ReplaceAll(path, "/", "."), "=", value)
		}
	}
	return nil
}
