// Package hoststatus makes the overview of a host that `allocnet status` prints: for the
// daemon, which serves it, and for the command line without a daemon.
package hoststatus

import (
	"bytes"
	"cmp"
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
	"github.com/allocnet/allocnet/cmd/internal/readiness"
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
	// Ready checks whether Setups can be expected to work; nil for no check.
	Ready func(context.Context) []readiness.Check
	// Known is what the daemon knows about the health of allocations; nil for nothing.
	Known Known
	// Host is the host to examine with the quick checks of the doctor; nil for none.
	Host *doctor.Host
	// CheckTime bounds the time for CHECK of all allocations; default 5 s. Time bounds that for everything;
	// default 10 s.
	CheckTime, Time time.Duration
}

// Known is what the daemon knows about the health of allocations. The overview shows it where it could not
// look in time, and adds what it finds, so that both say the same.
type Known interface {
	// Damage returns what was found last of an allocation, if it is unhealthy.
	Damage(id string) (found string, unhealthy bool)
	// Found notes the result of a CHECK, NotChecked a CHECK that could not be completed.
	Found(id string, err error)
	NotChecked(id string)
}

const (
	defaultCheckTime = 5 * time.Second
	defaultTime      = 10 * time.Second
	// maxDrift bounds the number of unhealthy allocations, problems and findings with a text.
	maxDrift = 20
)

// part reads a part of the overview, with its problems, and returns how to add it. A nil function
// means that it could not be read.
type part struct {
	name string // as in HostStatus.Unread
	read func(context.Context) (add func(*client.HostStatus), problems []string)
}

// Collect returns the overview. What cannot be read, or not in time, is among its Unread, with the
// reason in its Problems. It changes nothing.
func Collect(ctx context.Context, o Options) *client.HostStatus {
	s := &client.HostStatus{
		Daemon: o.Daemon, Engine: o.Engine, Versions: client.Versions{Kernel: kernel(), NFT: unknown, IPTables: unknown},
		Networks: []client.NetworkStatus{}, Skipped: []string{}, Drift: []client.Drift{}, Problems: []string{},
	}
	s.Errors, s.Repairs = o.Recent.read()
	notReady := map[string]error{} // by network
	for _, r := range readAll(ctx, cmp.Or(o.Time, defaultTime), o.parts(notReady)) {
		s.Problems = append(s.Problems, r.problems...)
		if r.add == nil {
			s.Unread = append(s.Unread, r.name)
		} else {
			r.add(s)
		}
	}
	for i := range s.Networks {
		if err := notReady[s.Networks[i].Name]; err != nil {
			s.Networks[i].NotReady = text(err)
		}
	}
	s.Problems = s.Problems[:min(len(s.Problems), maxDrift)]
	return s
}

// parts returns the parts of the overview. What is added for "ready" also gets into notReady, by network.
func (o *Options) parts(notReady map[string]error) []part {
	list := []part{
		{"networks", o.networks}, {"allocations", o.allocations},
		{"versions", func(ctx context.Context) (func(*client.HostStatus), []string) {
			v, problems := versions(ctx)
			return func(s *client.HostStatus) { s.Versions = v }, problems
		}},
	}
	if o.Host != nil {
		list = append(list, part{"doctor", func(ctx context.Context) (func(*client.HostStatus), []string) {
			found := summary(o.Host.ExamineQuickly(ctx))
			if err := ctx.Err(); err != nil {
				return nil, []string{"doctor: " + text(err)}
			}
			return func(s *client.HostStatus) { s.Doctor = found }, nil
		}})
	}
	if o.Ready != nil {
		list = append(list, part{"ready", func(ctx context.Context) (func(*client.HostStatus), []string) {
			return o.readiness(ctx, notReady)
		}})
	}
	return list
}

// readiness reads whether Setups can be expected to work. If a plugin does not answer in time, that is not known.
func (o *Options) readiness(ctx context.Context, notReady map[string]error) (add func(*client.HostStatus), problems []string) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(o.CheckTime, defaultCheckTime))
	defer cancel()
	checks := slices.DeleteFunc(o.Ready(ctx), func(c readiness.Check) bool { return c.Err == nil || c.NoDefault() })
	if ctx.Err() != nil {
		for _, c := range checks {
			problems = append(problems, "ready: "+text(c.Err))
		}
		return nil, problems
	}
	return func(s *client.HostStatus) {
		for _, c := range checks {
			s.NotReady = append(s.NotReady, text(c.Err))
			notReady[c.Network] = c.Err
		}
		ready := len(checks) == 0
		s.Ready = &ready
	}, nil
}

// result is what a part has read.
type result struct {
	name     string
	add      func(*client.HostStatus)
	problems []string
}

// readAll reads all parts at the same time. A part that does not return in time is not waited for: under
// load, or beside a program that hangs, the others are shown without it.
func readAll(ctx context.Context, longest time.Duration, parts []part) []result {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	done := make(chan result, len(parts))
	for _, p := range parts {
		go func() {
			add, problems := p.read(ctx)
			done <- result{p.name, add, problems}
		}()
	}
	late := time.NewTimer(longest + longest/10) // parts return what they have when their time is over
	defer late.Stop()
	found := map[string]result{}
	for isLate := false; len(found) < len(parts) && !isLate; {
		select {
		case r := <-done:
			found[r.name] = r
		case <-late.C:
			isLate = true
		}
	}
	list := make([]result, len(parts))
	for i, p := range parts {
		var returned bool
		if list[i], returned = found[p.name]; !returned {
			list[i] = result{p.name, nil, []string{fmt.Sprintf("%s: not read within %s: the host is overloaded, or a program hangs", p.name, longest)}}
		}
	}
	return list
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

// networks reads the networks with their addresses and pools.
func (o *Options) networks(ctx context.Context) (func(*client.HostStatus), []string) {
	read, _ := o.Networks() // the Service reports the skipped files
	networks, skipped := o.Service.Networks(ctx)
	if err := ctx.Err(); err != nil {
		return nil, []string{text(err)}
	}
	var files, problems []string
	for _, f := range skipped {
		if f.File == o.ConfDir && errors.Is(f.Err, fs.ErrNotExist) { // only the embedded network exists
			continue
		}
		files = append(files, text(f))
	}
	pools := o.Service.Pools()
	var list []client.NetworkStatus
	for _, n := range networks {
		one := client.NetworkStatus{Name: n.Name, Default: n.Default, Engine: n.Engine}
		if i := slices.IndexFunc(read, func(r *conflist.Network) bool { return r.Name == n.Name }); i >= 0 {
			counts, err := addresses.Count(read[i])
			if err != nil {
				problems = append(problems, text(err))
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
		list = append(list, one)
	}
	return func(s *client.HostStatus) {
		s.Networks, s.Skipped = append(s.Networks, list...), append(s.Skipped, files...)
	}, problems
}

// unknown is the version of a program that was not found out.
const unknown = "unknown"

func kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return unknown
	}
	return unix.ByteSliceToString(u.Release[:])
}

// versions returns the versions of the kernel and of the programs that plugins run.
func versions(ctx context.Context) (v client.Versions, problems []string) {
	problems = []string{}
	v.Kernel = kernel()
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
			*p.version = unknown
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
