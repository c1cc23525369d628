package doctor

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/cmd/internal/addresses"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/subnets"
	"github.com/allocnet/allocnet/sandbox"
)

// checkLimits looks for limits that are reached, or that Full of is.
func checkLimits(_ context.Context, h *Host) ([]Finding, error) {
	return lookAll(h.conntrack, h.neighbours, h.addresses, h.bridges, h.files)
}

// checkAttempts looks for limits that only an attempt, or a look at all processes, shows.
func checkAttempts(_ context.Context, h *Host) ([]Finding, error) {
	return lookAll(h.inotify, h.namespaces)
}

func lookAll(looks ...func() ([]Finding, error)) (findings []Finding, err error) {
	var errs []error
	for _, look := range looks {
		found, err := look()
		findings, errs = append(findings, found...), append(errs, err)
	}
	return findings, errors.Join(errs...)
}

// near reports whether a number is near a limit. A limit of 0 is none.
func (h *Host) near(n, limit float64) bool { return limit > 0 && n >= h.Full*limit }

// number reads a file with one number; 0 if it does not exist.
func number(file string) (float64, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(string(data)), 64)
}

func (h *Host) conntrack() ([]Finding, error) {
	count, err := number(sysctls + "netfilter/nf_conntrack_count")
	limit, limitErr := number(sysctls + "netfilter/nf_conntrack_max")
	if err := errors.Join(err, limitErr); err != nil || !h.near(count, limit) {
		return nil, err
	}
	return []Finding{find("conntrack-full", "net/netfilter/nf_conntrack_max", fmt.Sprintf("%.0f of %.0f connections are tracked", count, limit),
		fmt.Sprintf("sysctl -w net/netfilter/nf_conntrack_max=%.0f (and in a file of /etc/sysctl.d)", 2*limit))}, nil
}

// neighbours reads the neighbour tables by netlink, because the sysctls exist only in the
// first network namespace.
func (h *Host) neighbours() (findings []Finding, err error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETNEIGHTBL, unix.NLM_F_DUMP)
	request.AddData(nl.NewRtGenMsg())
	messages, err := request.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return nil, fmt.Errorf("list neighbour tables: %w", err)
	}
	seen := map[string]bool{}
	for _, m := range messages {
		t, err := parseNeighbourTable(m)
		if err != nil {
			return findings, err
		}
		if t.limit == 0 || seen[t.name] { // further messages have the parameters of single links
			continue
		}
		seen[t.name] = true
		if !h.near(float64(t.entries), float64(t.limit)) {
			continue
		}
		family := map[string]string{"arp_cache": "ipv4", "ndisc_cache": "ipv6"}[t.name]
		name := "net/" + family + "/neigh/default/gc_thresh3"
		findings = append(findings, find("neighbour-full", name, fmt.Sprintf("the table %s has %d of %d neighbours", t.name, t.entries, t.limit),
			fmt.Sprintf("sysctl -w %s=%d (and gc_thresh2, gc_thresh1 in proportion)", name, 4*t.limit)))
	}
	return findings, nil
}

type neighbourTable struct {
	name           string
	entries, limit uint32
}

// parseNeighbourTable parses an RTM_NEWNEIGHTBL: struct ndtmsg, then attributes.
func parseNeighbourTable(m []byte) (t neighbourTable, err error) {
	const header, attrName, attrThresh3, attrConfig = 4, 1, 4, 5
	if len(m) < header {
		return t, errors.New("list neighbour tables: a message is too short")
	}
	attrs, err := nl.ParseRouteAttr(m[header:])
	if err != nil {
		return t, fmt.Errorf("list neighbour tables: %w", err)
	}
	for _, a := range attrs {
		switch {
		case a.Attr.Type == attrName:
			t.name = string(bytes.TrimRight(a.Value, "\x00"))
		case a.Attr.Type == attrThresh3 && len(a.Value) >= 4:
			t.limit = binary.NativeEndian.Uint32(a.Value)
		case a.Attr.Type == attrConfig && len(a.Value) >= 8: // struct ndt_config
			t.entries = binary.NativeEndian.Uint32(a.Value[4:])
		}
	}
	return t, nil
}

// inotify makes an instance and counts those of this user.
func (h *Host) inotify() ([]Finding, error) {
	const repair = "sysctl -w fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=524288 (and in a file of /etc/sysctl.d)"
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err == nil {
		_, err = unix.InotifyAddWatch(fd, "/", unix.IN_DELETE_SELF)
		_ = unix.Close(fd)
	}
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENOSPC):
		return []Finding{find("inotify-full", "fs.inotify", "no further inotify instance or watch can be made: "+err.Error(), repair)}, nil
	case err != nil:
		return nil, fmt.Errorf("try inotify: %w", err)
	}
	limit, err := number("/proc/sys/fs/inotify/max_user_instances")
	if err != nil {
		return nil, err
	}
	if n := inotifyInstances(); h.near(float64(n), limit) {
		return []Finding{find("inotify-full", "fs.inotify.max_user_instances", fmt.Sprintf("processes of this user have %d of %.0f inotify instances", n, limit), repair)}, nil
	}
	return nil, nil
}

// inotifyInstances counts the inotify instances of this user's processes. Processes that end
// meanwhile do not count.
func inotifyInstances() (n int) {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	seen := map[string]bool{}
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || target != "anon_inode:inotify" {
			continue
		}
		process := filepath.Dir(filepath.Dir(link))
		if _, known := seen[process]; !known {
			info, err := os.Stat(process)
			stat, ok := infoStat(info, err)
			seen[process] = ok && stat.Uid == uint32(os.Geteuid())
		}
		if seen[process] {
			n++
		}
	}
	return n
}

func infoStat(info os.FileInfo, err error) (*syscall.Stat_t, bool) {
	if err != nil {
		return nil, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return stat, ok
}

// namespaces makes a network namespace, and counts those in the directory of named ones. The
// others, such as those of containers, count for the limit as well.
func (h *Host) namespaces() ([]Finding, error) {
	const file = "/proc/sys/user/max_net_namespaces"
	limit, err := number(file)
	if _, statErr := os.Stat(file); err != nil || statErr != nil { // a kernel without user namespaces
		return nil, err
	}
	entries, err := os.ReadDir(h.NetnsDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	repair := fmt.Sprintf("sysctl -w user.max_net_namespaces=%.0f (and in a file of /etc/sysctl.d)", max(2*limit, 1<<16))
	one, err := sandbox.New()
	switch {
	case err == nil:
		err = one.Close()
	case errors.Is(err, allocnet.ErrLimit):
		return []Finding{find("namespaces-full", "user.max_net_namespaces", fmt.Sprintf("no further network namespace can be made: %v", err), repair)}, nil
	default: // checkPrivileges and checkKernel report what is missing
		err = nil
	}
	if float64(len(entries)+1) < h.Full*limit { // the host's own one counts
		return nil, err
	}
	return []Finding{find("namespaces-full", "user.max_net_namespaces", fmt.Sprintf("%s has %d network namespaces of at most %.0f", h.NetnsDir, len(entries), limit), repair)}, err
}

func (h *Host) addresses() (findings []Finding, err error) {
	var errs []error
	for _, n := range h.Networks {
		if _, err := subnets.Pools(n); err != nil { // checkConfiguration reports it
			continue
		}
		counts, err := addresses.Count(n)
		errs = append(errs, err)
		for _, family := range slices.Sorted(maps.Keys(counts)) {
			const repair = "remove allocations (allocnet ls, allocnet gc), or configure a larger subnet"
			switch u := counts[family]; {
			case u.Free <= 0:
				findings = append(findings, find("addresses-exhausted", n.Name, fmt.Sprintf("network %q has no %s address left, of %.0f", n.Name, family, u.Used+u.Free), repair))
			case h.near(u.Used, u.Used+u.Free):
				findings = append(findings, find("addresses-full", n.Name, fmt.Sprintf("network %q has %.0f %s addresses left, of %.0f", n.Name, u.Free, family, u.Used+u.Free), repair))
			}
		}
	}
	return findings, errors.Join(errs...)
}

// maxPorts is the number of ports that a bridge of the kernel can have.
const maxPorts = 1023

func (h *Host) bridges() (findings []Finding, err error) {
	links, err := retry.List(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	ports := map[int]int{}
	for _, l := range links {
		ports[l.Attrs().MasterIndex]++
	}
	for _, l := range links {
		if n := ports[l.Attrs().Index]; l.Type() == "bridge" && isOwnBridge(h, l.Attrs().Name) && h.near(float64(n), maxPorts) {
			findings = append(findings, find("bridge-full", l.Attrs().Name, fmt.Sprintf("bridge %s has %d of %d ports", l.Attrs().Name, n, maxPorts),
				"use another network, or the plugin ptp, which has no such limit"))
		}
	}
	return findings, nil
}

// files compares the open files of the host with their limit.
func (h *Host) files() ([]Finding, error) {
	data, err := os.ReadFile("/proc/sys/fs/file-nr")
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(data))
	if len(fields) != 3 {
		return nil, fmt.Errorf("read fs.file-nr: %q", data)
	}
	open, err := strconv.ParseFloat(fields[0], 64)
	limit, limitErr := strconv.ParseFloat(fields[2], 64)
	if err := errors.Join(err, limitErr); err != nil || !h.near(open, limit) {
		return nil, err
	}
	return []Finding{find("files-full", "fs.file-max", fmt.Sprintf("%.0f of %.0f files are open", open, limit), fmt.Sprintf("sysctl -w fs.file-max=%.0f", 2*limit))}, nil
}
