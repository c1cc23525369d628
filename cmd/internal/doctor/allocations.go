package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/object"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/state/statedir"
	"github.com/allocnet/allocnet/sandbox"
)

// single returns the errors that are joined in one.
func single(err error) (list []error) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	for _, e := range joined.Unwrap() {
		list = append(list, single(e)...)
	}
	return list
}

// unreadable returns the findings about records that could not be read.
func unreadable(err error) []Finding {
	findings := []Finding{}
	if err == nil {
		return findings
	}
	for _, e := range single(err) {
		findings = append(findings, unreadableRecord(e))
	}
	return findings
}

func unreadableRecord(err error) Finding {
	var broken *allocnet.RecordError
	if !errors.As(err, &broken) {
		return find("not-checked", "records", redact.Text(err.Error()), "remove the cause, then: allocnet doctor")
	}
	repair := "allocnet inspect " + broken.ID + ` --json 2>&1 >/dev/null | grep -q '"kind":"unreadable-record"' && allocnet teardown ` + broken.ID + " --netns PATH (the path of its network namespace)"
	switch {
	case errors.Is(err, allocnet.ErrNewer):
		repair = "use the newer allocnet that wrote " + broken.File
	case errors.Is(err, statedir.ErrNotOurs):
		repair = "chown root " + broken.File + "; chmod go-w " + broken.File
	}
	return find("record-unreadable", broken.ID, err.Error(), repair)
}

// unreported returns an error without the errors of records in it that Examine reports.
func (h *Host) unreported(err error) error {
	var broken, known *allocnet.RecordError
	return errors.Join(slices.DeleteFunc(single(err), func(e error) bool {
		return errors.As(e, &broken) && slices.ContainsFunc(single(h.unread), func(u error) bool {
			return errors.As(u, &known) && known.ID == broken.ID
		})
	})...)
}

// checkTime bounds the CHECK of all allocations.
const checkTime = 10 * time.Second

// checkRecords looks for allocations whose operation did not end, or whose network namespace is gone.
func checkRecords(ctx context.Context, h *Host) (findings []Finding, err error) {
	var errs []error
	for i := range h.records {
		id := h.records[i].ID
		if h.records[i].Acknowledged || h.records[i].Phase == configurator.PhaseReady && !h.records[i].NetnsGone {
			continue
		}
		found, err := h.damaged(ctx, id)
		findings, errs = append(findings, found...), append(errs, err)
	}
	return findings, errors.Join(errs...)
}

// damaged returns the finding about an allocation whose operation did not end, or whose network
// namespace is gone.
func (h *Host) damaged(ctx context.Context, id string) ([]Finding, error) {
	r, err := h.unattended(ctx, id)
	switch {
	case r == nil:
		return nil, err
	case r.NetnsGone:
		return []Finding{find("netns-gone", id, fmt.Sprintf("the network namespace %s of allocation %q is gone", r.Netns, id), "allocnet teardown --gone "+id)}, nil
	case r.Phase != configurator.PhaseReady:
		return []Finding{find("interrupted", id, fmt.Sprintf("allocation %q is in phase %q, and no operation works on it", id, r.Phase), "allocnet recover")}, nil
	}
	return nil, nil
}

// looking is held while this process has the lock of an allocation only to look at it: another look is no
// operation that works on it.
var looking sync.Mutex

// unattended reads the record of an allocation again while no operation works on it. It returns nil if one
// does, or if the removal of the allocation is on the way or has ended.
func (h *Host) unattended(ctx context.Context, id string) (*configurator.Record, error) {
	looking.Lock()
	defer looking.Unlock()
	unlock, free, err := h.tryLock(id)
	if err != nil || !free {
		return nil, err
	}
	defer unlock()
	r, err := h.Service.Get(ctx, id)
	switch {
	case errors.Is(err, configurator.ErrNotFound): // it was torn down meanwhile
		return nil, nil
	case err != nil:
		return nil, err
	case r.Acknowledged:
		return nil, nil
	}
	return r, nil
}

// Interrupted returns the phase of an allocation on which an operation did not end, and none works; "" for
// others.
func (h *Host) Interrupted(ctx context.Context, id string) (configurator.Phase, error) {
	r, err := h.unattended(ctx, id)
	if r == nil || r.Phase == configurator.PhaseReady {
		return "", err
	}
	return r.Phase, nil
}

// checkAllocations compares records, leases and objects of the host with each other.
func checkAllocations(ctx context.Context, h *Host) ([]Finding, error) {
	leftovers, err := h.leftovers(ctx)
	leases, leasesErr := h.leases(ctx)
	return slices.Concat(leftovers, leases, h.drift(ctx)), errors.Join(err, leasesErr)
}

// tryLock takes the lock of an allocation, and reports whether it was free: that no operation
// works on the allocation.
func (h *Host) tryLock(id string) (unlock func(), free bool, err error) {
	locked, unlock, err := record.Open(h.StateDir).TryLocks([]string{id})
	if err == nil && len(locked) == 0 {
		unlock()
	}
	return unlock, len(locked) > 0, err
}

// drift runs CHECK of the allocations that are set up.
func (h *Host) drift(ctx context.Context) (findings []Finding) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	var ids []string
	for _, r := range h.ready() {
		ids = append(ids, r.ID)
	}
	health := h.Service.CheckAll(ctx, ids)
	unreached := 0
	for _, id := range ids {
		switch err, checked := health[id]; {
		case !checked && ctx.Err() != nil:
			unreached++
		case errors.Is(err, configurator.ErrUnhealthy):
			repair := "allocnet repair; for what it reports as broken: allocnet setup with the same arguments"
			if errors.Is(err, rtnl.ErrForeignRoute) || errors.Is(err, object.ErrSmallMTU) { // another program may want it so
				repair = "run the command that the error names, then: allocnet repair"
			}
			findings = append(findings, find("drift", id, err.Error(), repair))
		case err != nil:
			findings = append(findings, find("not-checked", id, err.Error(), "remove the cause, then: allocnet check "+id))
		}
	}
	if unreached > 0 {
		findings = append(findings, find("not-checked", "allocations", fmt.Sprintf("%d allocations were not checked within %s", unreached, checkTime), "allocnet repair"))
	}
	return findings
}

// live returns the IDs of all records.
func (h *Host) live() []string {
	ids := make([]string, len(h.records))
	for i := range h.records {
		ids[i] = h.records[i].ID
	}
	return ids
}

// slotPrefix begins the IDs of prepared network namespaces.
const slotPrefix = "pool-"

// leftovers reports objects of allocations without a record, in all networks. What only has
// leases can be removed safely: nothing in the kernel uses the addresses.
func (h *Host) leftovers(ctx context.Context) (findings []Finding, err error) {
	scope := configurator.Scope{Live: h.live()}
	for _, n := range h.Networks {
		scope.Networks = append(scope.Networks, n.Name)
	}
	report, err := h.Service.PlanGC(ctx, scope)
	if err != nil && report == nil {
		return nil, err
	}
	slots, errs := 0, []error{h.unreported(err)}
	for _, r := range report.Records {
		if strings.HasPrefix(r.ID, slotPrefix) && h.isDeadSlot(r.ID) {
			slots++
			continue
		}
		left, err := h.leftoversOf(ctx, &r)
		if err != nil {
			err = fmt.Errorf("audit of %q: %w", r.ID, err)
		}
		findings, errs = append(findings, left...), append(errs, err)
	}
	if slots > 0 {
		findings = append(findings, find("leftover", "pool", fmt.Sprintf("a daemon that ended without removing its pools has left prepared network namespaces: %d", slots),
			"systemctl start allocnetd (it removes them), or: allocnet recover"))
	}
	return findings, errors.Join(errs...)
}

// isDeadSlot reports whether an ID is that of a prepared network namespace of a process that has
// ended, and that no other process is removing.
func (h *Host) isDeadSlot(id string) bool {
	unlock, free, err := h.tryLock(id)
	if err != nil || !free {
		return false
	}
	defer unlock()
	store := record.Open(h.StateDir)
	r, err := store.Get(id)
	return err == nil && r.Pool != "" && !store.PoolAlive(r.Pool)
}

// leftoversOf returns the finding about an allocation that had objects and no record. The audit
// decides: it has both from one moment, in which no operation worked on the allocation.
func (h *Host) leftoversOf(ctx context.Context, r *configurator.Record) ([]Finding, error) {
	unlock, free, err := h.tryLock(r.ID)
	if err != nil || !free {
		return nil, err
	}
	unlock()
	alloc := configurator.Allocation{ID: r.ID, Netns: filepath.Join(h.NetnsDir, r.ID)}
	for _, n := range r.Networks {
		alloc.Networks = append(alloc.Networks, n.Network)
	}
	found, recorded, err := h.Service.AuditWithRecord(ctx, alloc)
	if err == nil && recorded == nil && len(found) > 0 { // a slot may have been taken and removed during the audit
		found, recorded, err = h.Service.AuditWithRecord(ctx, alloc)
	}
	switch {
	case errors.Is(err, configurator.ErrSetUp): // another allocation has taken it from a pool
		return nil, nil
	case err != nil:
		return nil, err
	case recorded != nil, len(found) == 0: // it was set up, or removed, in the meantime
		return nil, nil
	}
	texts := make([]string, len(found))
	for i, l := range found {
		texts[i] = l.String()
	}
	what := fmt.Sprintf("allocation %q has no record, but on the host there is: %s", r.ID, strings.Join(texts[:min(len(texts), 8)], "; "))
	repair := "allocnet cleanup --force " + r.ID + networkFlags(alloc.Networks)
	if slices.ContainsFunc(found, func(l configurator.Leftover) bool { return l.Kind != allocnet.KindLease }) {
		return []Finding{find("leftover", r.ID, what, repair)}, nil
	}
	return []Finding{find("lease-without-owner", r.ID, what, repair).withFix(func(ctx context.Context) error {
		_, err := h.Service.Force(ctx, alloc)
		return err
	})}, nil
}

func networkFlags(names []string) (flags string) {
	for _, n := range names {
		flags += " --network " + n
	}
	return flags
}

// staleTime is the age from which a file without a namespace is not one that a program is
// about to mount a namespace on.
const staleTime = 10 * time.Second

// checkNamespaces looks for files without a namespace, and for namespaces of allocations that
// no longer exist.
func checkNamespaces(ctx context.Context, h *Host) (findings []Finding, err error) {
	entries, err := os.ReadDir(h.NetnsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	makers, makersErr := h.netnsMakers()
	for _, e := range entries {
		path := filepath.Join(h.NetnsDir, e.Name())
		if isStale(path) {
			findings = append(findings, h.stale(path, makers[path]))
		}
	}
	orphans, err := h.Service.Orphans(ctx)
	for _, path := range orphans {
		findings = append(findings, find("netns-orphan", path, "network namespace "+path+" was made for an allocation that no longer exists", "allocnet cleanup --orphans"))
	}
	return findings, errors.Join(makersErr, err)
}

// netnsMakers returns, by path, the allocations for which allocnet made network namespaces.
func (h *Host) netnsMakers() (map[string]string, error) {
	store := record.Open(h.StateDir)
	ids, err := store.WithSandboxes()
	makers, errs := map[string]string{}, []error{err}
	for _, id := range ids {
		list, err := store.Sandboxes(id)
		errs = append(errs, err)
		for _, s := range list {
			makers[s.Path] = id
		}
	}
	return makers, errors.Join(errs...)
}

// stale returns the finding about a file that is not a network namespace. Only a file that
// allocnet made, for the allocation maker, has a safe repair: on one of another program, a
// namespace may be mounted in a mount namespace that is not visible here.
func (h *Host) stale(path, maker string) Finding {
	switch {
	case isMountPoint(path):
		return find("netns-stale", path, path+" is a mount point, and not of a network namespace", "findmnt -t nsfs "+path+" || { umount "+path+" && rm "+path+"; } (findmnt "+path+" shows what is mounted)")
	case maker == "" || !sandbox.Unfinished(path):
		return find("netns-stale", path, path+" is an empty file, no network namespace is mounted on it, and allocnet has no record of it",
			"rm "+path+" (if no program uses it: grep -l "+path+" /proc/*/mountinfo)")
	}
	return find("netns-stale", path, fmt.Sprintf("%s is the empty file on which allocnet mounts the network namespace of allocation %q, and none is mounted", path, maker), "rm "+path).
		withFix(func(ctx context.Context) error {
			unlock, err := record.Open(h.StateDir).Lock(ctx, maker)
			if err != nil {
				return err
			}
			defer unlock()
			if !isStale(path) || isMountPoint(path) || !sandbox.Unfinished(path) {
				return nil
			}
			return sandbox.Destroy(path)
		})
}

// isMountPoint reports whether something is mounted on the file at a path.
func isMountPoint(path string) bool {
	var s unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &s)
	return err == nil && s.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// isStale reports whether the file at a path is not a network namespace and no program is about
// to mount one there.
func isStale(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().IsRegular() && info.Size() == 0 && time.Since(info.ModTime()) > staleTime &&
		errors.Is(sandbox.Validate(path), sandbox.ErrNotNamespace)
}
