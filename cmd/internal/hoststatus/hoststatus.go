// Package hoststatus makes the overview of a host that `allocnet status` prints: for the
// daemon, which serves it, and for the command line without a daemon.
package hoststatus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/addresses"
	"github.com/allocnet/allocnet/cmd/internal/doctor"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// Options configure Collect.
type Options struct {
	Service *configurator.Configurator
	// Networks are the networks of the Service with their configurations.
	Networks func() ([]*conflist.Network, []*conflist.FileError)
	Engine   configurator.Engine
	ConfDir  string
	Daemon   *client.DaemonStatus // nil without a daemon
	Recent   *Recent              // nil without a daemon
	// Host is the host to examine with the quick checks of the doctor; nil for none.
	Host *doctor.Host
	// CheckTime bounds the time for CHECK of all allocations; default 5 s.
	CheckTime time.Duration
}

const (
	defaultCheckTime = 5 * time.Second
	// maxDrift bounds the number of unhealthy allocations, problems and findings with a text.
	maxDrift = 20
)

// Collect returns the overview. It changes nothing. What cannot be read is in its Problems.
func Collect(ctx context.Context, o Options) *client.HostStatus {
	s := &client.HostStatus{
		Daemon: o.Daemon, Engine: o.Engine,
		Networks: []client.NetworkStatus{}, Skipped: []string{}, Drift: []client.Drift{},
	}
	s.Versions, s.Problems = versions(ctx)
	s.Errors, s.Repairs = o.Recent.read()
	var examining sync.WaitGroup
	if o.Host != nil {
		examining.Go(func() { s.Doctor = summary(o.Host.ExamineQuickly(ctx)) })
	}
	o.addNetworks(ctx, s)
	o.addAllocations(ctx, s)
	examining.Wait()
	return s
}

// summary counts findings, and returns the first ones.
func summary(r *doctor.Report) *client.DoctorSummary {
	s := &client.DoctorSummary{Findings: []client.DoctorFinding{}}
	for _, f := range r.Findings {
		if f.Severity == doctor.Error {
			s.Errors++
		} else {
			s.Warnings++
		}
		if len(s.Findings) < maxDrift {
			s.Findings = append(s.Findings, client.DoctorFinding{ID: f.ID, Severity: string(f.Severity), Object: f.Object, What: f.What})
		}
	}
	return s
}

// addNetworks adds the networks with their addresses and pools.
func (o *Options) addNetworks(ctx context.Context, s *client.HostStatus) {
	read, _ := o.Networks() // the Service reports the skipped files
	networks, skipped := o.Service.Networks(ctx)
	for _, f := range skipped {
		if f.File == o.ConfDir && errors.Is(f.Err, fs.ErrNotExist) { // only the embedded network exists
			continue
		}
		s.Skipped = append(s.Skipped, text(f))
	}
	pools := o.Service.Pools()
	for _, n := range networks {
		one := client.NetworkStatus{Name: n.Name, Default: n.Default, Engine: n.Engine}
		if i := slices.IndexFunc(read, func(r *conflist.Network) bool { return r.Name == n.Name }); i >= 0 {
			counts, err := addresses.Count(read[i])
			if err != nil {
				s.Problems = append(s.Problems, text(err))
			}
			for family, u := range counts {
				if one.Addresses == nil {
					one.Addresses = map[string]client.AddressCounts{}
				}
				one.Addresses[family] = client.AddressCounts(u)
			}
		}
		if i := slices.IndexFunc(pools, func(p configurator.PoolStatus) bool { return p.Network == n.Name }); i >= 0 {
			one.Pool = &client.PoolCounts{Ready: pools[i].Ready, Size: pools[i].Size}
		}
		s.Networks = append(s.Networks, one)
	}
}

// addAllocations adds the allocations by health.
func (o *Options) addAllocations(ctx context.Context, s *client.HostStatus) {
	records, err := o.Service.List(ctx)
	if err != nil {
		s.Problems = append(s.Problems, text(err))
	}
	o.addHealth(ctx, s, records)
	s.Problems = s.Problems[:min(len(s.Problems), maxDrift)]
}

// addHealth adds the allocations of records by health. Those that are set up are checked. So are
// those whose network namespace is gone: their teardown may have ended since the records were read.
func (o *Options) addHealth(ctx context.Context, s *client.HostStatus, records []configurator.Record) {
	var ready []string
	lost := map[string]bool{}
	counts := &s.Allocations
	counts.Total = len(records)
	for i := range records {
		for _, w := range records[i].Waiting {
			if len(s.Waiting) < maxDrift {
				s.Waiting = append(s.Waiting, client.Waiting{ID: records[i].ID, Port: w.Mapping.Published(), Older: w.ID})
			}
		}
		switch r := &records[i]; {
		case r.Acknowledged, r.Phase == configurator.PhaseDeleting:
			counts.Deleting++
		case r.NetnsGone:
			ready, lost[r.ID] = append(ready, r.ID), true
		case r.Phase == configurator.PhaseAdding:
			counts.Adding++
		default:
			ready = append(ready, r.ID)
		}
	}
	limit := o.CheckTime
	if limit == 0 {
		limit = defaultCheckTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	health := o.Service.CheckAll(ctx, ready)
	for _, id := range ready {
		switch err, checked := health[id]; {
		case !checked && ctx.Err() == nil: // it has been torn down meanwhile
			counts.Total--
		case checked && err == nil:
			counts.Healthy++
		case lost[id] && (!checked || errors.Is(err, configurator.ErrUnhealthy)):
			counts.NetnsGone++
		case errors.Is(err, configurator.ErrUnhealthy):
			counts.Unhealthy++
			s.Unhealthy = append(s.Unhealthy, id)
			if len(s.Drift) < maxDrift {
				s.Drift = append(s.Drift, client.Drift{ID: id, Error: text(err)})
			}
		default:
			counts.Unchecked++
			s.Unchecked = append(s.Unchecked, id)
			if err != nil {
				s.Problems = append(s.Problems, text(fmt.Errorf("check %s: %w", id, err)))
			}
		}
	}
}

// versions returns the versions of the kernel and of the programs that plugins run.
func versions(ctx context.Context) (v client.Versions, problems []string) {
	problems = []string{}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		v.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	programs := []struct {
		name    string
		version *string
		err     error
	}{{name: "iptables", version: &v.IPTables}, {name: "nft", version: &v.NFT}}
	var wg sync.WaitGroup
	for i := range programs {
		p := &programs[i]
		wg.Go(func() { *p.version, p.err = versionOf(ctx, p.name) })
	}
	wg.Wait()
	for _, p := range programs {
		if p.err != nil {
			*p.version = "unknown"
			problems = append(problems, fmt.Sprintf("%s is installed, but %v", p.name, p.err))
		}
	}
	return v, problems
}

// programTime bounds the time of a program that prints its version.
const programTime = 2 * time.Second

// versionOf returns what a program prints as its version without its name; "" if it is not
// installed.
func versionOf(ctx context.Context, program string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, programTime)
	defer cancel()
	start := time.Now()
	var complaint bytes.Buffer
	c := exec.CommandContext(ctx, path, "--version")
	c.WaitDelay, c.Stderr = time.Second, &complaint
	out, err := c.Output()
	switch text, _, _ := strings.Cut(strings.TrimSpace(complaint.String()), "\n"); {
	case ctx.Err() != nil:
		return "", fmt.Errorf("%q gave no answer for %s", path+" --version", time.Since(start).Round(time.Millisecond))
	case err != nil && text != "":
		return "", fmt.Errorf("%q failed: %w: %s", path+" --version", err, text)
	case err != nil:
		return "", fmt.Errorf("%q failed: %w", path+" --version", err)
	}
	line, _, _ := bytes.Cut(out, []byte("\n"))
	_, version, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
	return version, nil
}
