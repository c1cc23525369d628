package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/cmd/internal/doctor"
	"github.com/allocnet/allocnet/cmd/internal/readiness"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/wire"
	"github.com/allocnet/allocnet/sandbox"
)

const doctorHelp = `Examine this host for what keeps networks from working, now or soon: features of the
kernel, sysctls, rules of other programs, overlapping subnets, settings and network
configurations, plugins, leftovers, limits, disk and clock. Each finding says what was
found, why it matters, and which command repairs it.

Nothing is changed without --fix. With it, only these repairs are made, which restore
what allocnet needs or remove unused objects of allocnet:
%s
The other repairs are for the administrator. The daemon never executes doctor: this
process does, with the settings that the daemon on --socket used last. It asks a daemon
that runs whether networks are ready, and what it does not serve.`

func newDoctor(a *app) *cobra.Command {
	var fix bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Examine this host, and name what to repair",
		Long:  fmt.Sprintf(doctorHelp, safeKinds()),
		Example: `  allocnet doctor
  allocnet doctor --fix
  allocnet doctor --json | jq -r '.findings[] | "\(.id) \(.repair)"'`,
		Annotations:       exits("something was found (with --fix: something is left)"),
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(c *cobra.Command, _ []string) error { return a.doctor(c.Context(), fix) },
	}
	c.Flags().BoolVar(&fix, "fix", false, "make the safe repairs")
	return c
}

// safeKinds lists the findings that --fix repairs.
func safeKinds() string {
	var b strings.Builder
	for _, k := range doctor.Kinds {
		if k.Safe {
			fmt.Fprintf(&b, "  %-20s  %s\n", k.ID, safeRepairs[k.ID])
		}
	}
	return b.String()
}

// safeRepairs are what --fix does for the kinds of findings that it repairs.
var safeRepairs = map[string]string{
	"forwarding-off":      "switch forwarding on",
	"routers-ignored":     "let the link take router advertisements although the host forwards (accept_ra=2)",
	"route-localnet":      "set route_localnet of allocations' links",
	"forward-drop":        "make allocnet's rule in the chain FORWARD",
	"lease-without-owner": "remove the lease, if the kernel has nothing of the allocation",
	"netns-stale":         "remove the file, if allocnet made it for a network namespace",
}

// errFindings is the error of an examination that found something, which is printed.
var errFindings = errors.New("the host needs repairs")

// doctorReport is the result of doctor. With --fix, Fixed are the findings with a safe
// repair, and Findings are those of a second examination.
type doctorReport struct {
	Healthy bool `json:"healthy"`
	doctor.Report
	Fixed []doctor.Finding `json:"fixed,omitempty"`
}

func (a *app) doctor(ctx context.Context, fix bool) error {
	a.examines = true
	h, err := a.doctorHost(ctx)
	if err != nil {
		return err
	}
	done := a.progress("examining the host")
	defer done()
	report := doctorReport{Report: *h.Examine(ctx)}
	if fix {
		report.Fix(ctx)
		report.Fixed = slices.DeleteFunc(slices.Clone(report.Findings), func(f doctor.Finding) bool { return !f.Safe })
		report.Report = *h.Examine(ctx)
	}
	done()
	report.Healthy = len(report.Findings) == 0
	if a.flags.json {
		err = a.out.JSON(report)
	} else {
		a.printDoctor(&report)
	}
	switch {
	case err != nil || report.Healthy:
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	err = fmt.Errorf("%w: %s", errFindings, term.Plural(len(report.Findings), "finding"))
	if safe := countSafe(report.Findings); safe > 0 && !fix {
		return stepError{err, fmt.Sprintf("`allocnet doctor --fix` makes the repairs of %s", term.Plural(safe, "finding"))}
	}
	return err
}

// countSafe returns the number of findings that --fix repairs.
func countSafe(findings []doctor.Finding) (n int) {
	for _, f := range findings {
		if f.Safe {
			n++
		}
	}
	return n
}

// doctorHost returns the host with the settings of the flags and of the daemon.
func (a *app) doctorHost(ctx context.Context) (*doctor.Host, error) {
	conf, err := a.configurator()
	if err != nil {
		return nil, err
	}
	dir, err := a.configurations()
	if err != nil {
		return nil, err
	}
	cfg := a.flags.others
	h := &doctor.Host{
		Service: conf, Engine: configurator.Engine(a.flags.engine), ConfDir: a.flags.confDir, StateDir: a.flags.stateDir,
		PluginDirs: a.pluginDirs(), VendorDir: cfg.VendorDir, NetnsDir: cfg.NetnsDir, Settings: settings.DefaultFile,
	}
	if h.NetnsDir == "" {
		h.NetnsDir = sandbox.DefaultDir
	}
	h.StateDir = filepath.Clean(h.StateDir)
	h.Networks, h.Skipped = dir.Networks()
	h.Ready = func(ctx context.Context) ([]readiness.Check, error) { return a.readiness(ctx, h) }
	return h, ctx.Err()
}

// readyTime bounds the wait for the daemon, which bounds its own look at the networks.
const readyTime = 35 * time.Second

// readiness asks the daemon whether Setups can be expected to work, and what it does not serve. If no daemon
// runs, this process looks itself.
func (a *app) readiness(ctx context.Context, h *doctor.Host) ([]readiness.Check, error) {
	if a.flags.localFlag() != "" { // the daemon has other settings
		return readyHere(ctx, h), nil
	}
	daemon, err := a.daemon()
	switch {
	case err != nil:
		return nil, err
	case daemon == nil:
		return readyHere(ctx, h), nil
	}
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	answer, err := a.get(ctx, "/readyz")
	if err != nil {
		return nil, fmt.Errorf("ask the daemon whether it is ready: %w", err)
	}
	defer answer.Body.Close()
	var ready wire.Readiness
	if err := json.NewDecoder(answer.Body).Decode(&ready); err != nil || ready.Checks == nil {
		return nil, fmt.Errorf("ask the daemon whether it is ready: unexpected answer %s", answer.Status)
	}
	var checks []readiness.Check
	for _, c := range ready.Checks {
		checks = append(checks, readiness.Check{Name: c.Name, Network: c.Network, Err: c.Error.Err(), Warning: c.Warning.Err()})
	}
	return checks, nil
}

// readyHere checks the readiness file, and each network with a file, or the default one if there is none.
func readyHere(ctx context.Context, h *doctor.Host) []readiness.Check {
	var checks []readiness.Check
	if s, err := (settings.Source{File: h.Settings}).Load(); err == nil { // doctor reports the error
		checks = append(checks, readiness.Check{Name: "configuration", Err: readiness.CheckFile(s.Manager.ReadinessFile)})
	}
	var names []string
	for _, n := range h.Networks {
		if n.File != "" {
			names = append(names, n.Name)
		}
	}
	return append(checks, readiness.Networks(ctx, h.Service, names)...)
}

// get asks the daemon for a path.
func (a *app) get(ctx context.Context, path string) (*http.Response, error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", a.flags.socket)
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://allocnetd"+path, nil)
	if err != nil {
		return nil, err
	}
	return transport.RoundTrip(request)
}

func (a *app) printDoctor(r *doctorReport) {
	for _, f := range r.Fixed {
		if f.Fixed {
			a.out.Printf("%s %s: %s\n", a.out.Paint(term.Green, "fixed"), a.out.Paint(term.Bold, f.ID), f.What)
		} else {
			a.out.Printf("%s %s: %s: %s\n", a.out.Paint(term.Red, "not fixed"), a.out.Paint(term.Bold, f.ID), f.What, f.FixError)
		}
	}
	for _, f := range r.Findings {
		look := term.Yellow
		if f.Severity == doctor.Error {
			look = term.Red
		}
		a.out.Printf("%s %s: %s\n", a.out.Paint(look, string(f.Severity)), a.out.Paint(term.Bold, f.ID), f.What)
		for _, line := range [][2]string{{"why", f.Why}, {"repair", f.Repair}} {
			a.out.Printf("  %-7s ", line[0])
			a.out.Folded(10, term.Plain, line[1])
		}
		if f.Safe {
			a.out.Printf("          allocnet doctor --fix does so\n")
		}
	}
	if r.Healthy {
		a.out.Printf("%s %s, nothing found\n", a.out.Paint(term.Green, a.out.Mark()), term.Plural(len(r.Checks), "check"))
	}
}
