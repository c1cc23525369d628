package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/doctor"
	"github.com/allocnet/allocnet/cmd/internal/hoststatus"
	"github.com/allocnet/allocnet/cmd/internal/readiness"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/subnets"
)

func newStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the state of the daemon, the networks and the allocations",
		Long: `Show the state of the daemon, whether setups can be expected to work, the networks with
their addresses, the allocations by health, the last errors, what differs from the
records, and the versions of the host.

The command runs CHECK of every allocation, for a few seconds at most. Allocations that
were not checked in time count as "not checked", unless the daemon knows that they are
unhealthy. What could not be read in time is shown as unknown. The quick checks of
` + "`allocnet doctor`" + ` run as well. The checks of plugin directories, leftovers and open inotify
instances are left out. Nothing is changed. Without the daemon, this process does the
same; then there are no last errors.`,
		Annotations: exits("an allocation is unhealthy, interrupted, was not checked or has lost its network namespace, setups cannot be expected to work, " +
			"a file was skipped, something could not be read, or doctor found an error (a warning of doctor changes nothing)"),
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(c *cobra.Command, _ []string) error { return a.status(c.Context()) },
	}
}

// status prints the overview of the daemon, or of this process if no daemon runs.
func (a *app) status(ctx context.Context) error {
	daemon, err := a.daemon()
	if err != nil {
		return err
	}
	done := a.progress("checking the allocations")
	s, err := a.hostStatus(ctx, daemon)
	done()
	if err != nil {
		return err
	}
	if a.flags.json {
		err = a.out.JSON(s)
	} else {
		a.printHostStatus(s)
	}
	if err == nil && isWrong(s) {
		return reported(exitNo)
	}
	return err
}

// isWrong reports whether something has to be repaired, now.
func isWrong(s *client.HostStatus) bool {
	c := &s.Allocations
	return s.Daemon != nil && len(s.Daemon.Problems) > 0 || s.Ready != nil && !*s.Ready ||
		c.Unhealthy+c.Unchecked+c.NetnsGone+c.Interrupted+c.Unreadable+len(s.Skipped)+len(s.Problems)+len(s.Unread) > 0 || s.Doctor != nil && s.Doctor.Errors > 0
}

func (a *app) hostStatus(ctx context.Context, daemon *client.Client) (*client.HostStatus, error) {
	if daemon != nil {
		s, err := daemon.HostStatus(ctx)
		if !errors.Is(err, client.ErrUnavailable) || a.flags.set.Changed("socket") {
			return s, overloaded(err)
		}
	}
	h, err := a.doctorHost(ctx)
	if err != nil {
		return nil, err
	}
	networks, err := a.configurations()
	if err != nil {
		return nil, err
	}
	return hereStatus(ctx, h, networks), nil
}

// overloaded returns the error of a read with the next step if it took too long: no plugin is waited for so long.
func overloaded(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return stepError{err, "the daemon is overloaded or hangs: try again, and look at its log (journalctl -u allocnetd)"}
	}
	return err
}

// hereStatus returns the overview without the daemon.
func hereStatus(ctx context.Context, h *doctor.Host, networks *conflist.Dir) *client.HostStatus {
	now := *h
	now.Networks, now.Skipped = networks.Networks()
	return hoststatus.Collect(ctx, hoststatus.Options{
		Service: h.Service, Networks: networks.Networks, Engine: h.Engine, ConfDir: h.ConfDir, Host: &now,
		Ready: func(ctx context.Context) []readiness.Check { return readyHere(ctx, &now) },
	})
}

// configurations returns the networks of --conf-dir and the embedded one, with their
// configurations. Call it after configurator, which completes the flags.
func (a *app) configurations() (*conflist.Dir, error) {
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}
	dir, err := subnets.Networks(cfg.ConfDir, conflist.EmbeddedOptions{
		StateDir: filepath.Clean(cfg.StateDir), Subnets: cfg.Subnets, SubnetsFrom: cfg.SubnetsFrom, Routes: conflist.EmbeddedRoutes(cfg.Routes), Policy: cfg.Policy, ForBinaries: cfg.Engine == configurator.EngineExec,
	})
	if err != nil {
		return nil, err
	}
	if cfg.Engine != configurator.EngineExec {
		dir.Resolving()
	}
	return dir, nil
}

func (a *app) printHostStatus(s *client.HostStatus) {
	var daemon term.Cell
	switch d := s.Daemon; {
	case d == nil && (a.flags.noDaemon || a.flags.localFlag() != ""):
		daemon = term.Cell{Text: "not asked, because of the flags; settings and state are read by this process", Style: term.Yellow}
	case d == nil:
		daemon = term.Cell{Text: "not running; settings and state are read by this process", Style: term.Yellow}
	default:
		daemon = term.Cell{Text: fmt.Sprintf("running for %s, process %d, version %s", term.Age(time.Since(d.Started)), d.PID, d.Version), Style: term.Green}
	}
	rows := [][]term.Cell{
		{{Text: "Daemon", Style: term.Bold}, daemon},
		{{Text: "Engine", Style: term.Bold}, {Text: string(s.Engine)}},
		{{Text: "Ready", Style: term.Bold}, readyCell(s)},
		{{Text: "Allocations", Style: term.Bold}, known(s, "allocations", healthCell(&s.Allocations))},
		{{Text: "Drift", Style: term.Bold}, known(s, "allocations", driftCell(&s.Allocations))},
		{{Text: "Doctor", Style: term.Bold}, known(s, "doctor", doctorCell(s.Doctor))},
		{{Text: "Kernel", Style: term.Bold}, {Text: s.Versions.Kernel}},
		{{Text: "nft", Style: term.Bold}, {Text: installed(s.Versions.NFT)}},
		{{Text: "iptables", Style: term.Bold}, {Text: installed(s.Versions.IPTables)}},
	}
	if r := s.Repairs; r.Last != nil {
		repairs := fmt.Sprintf("%d since the start, the last one %s ago", r.Count, term.Age(time.Since(*r.Last)))
		rows = slices.Insert(rows, 6, []term.Cell{{Text: "Repairs", Style: term.Bold}, {Text: join([]string{repairs, r.Change})}})
	}
	a.out.Table(nil, rows)
	if !slices.Contains(s.Unread, "networks") {
		a.printNetworkStatus(s.Networks)
	}
	a.printSection("NOT READY (`allocnet ready` looks again)", s.NotReady)
	var lines []string
	for _, d := range s.Drift {
		lines = append(lines, d.ID+": "+withoutID(d.Error, d.ID))
	}
	var waiting []string
	for _, w := range s.Waiting {
		waiting = append(waiting, fmt.Sprintf("%s: host port %s leads to %s, which had it first", w.ID, w.Port, w.Older))
	}
	a.printSection("WAITING (each host port leads here when the older allocation is torn down)", waiting)
	a.printSection("DRIFT (`allocnet repair` restores what another program removed)", lines)
	lines = nil
	if s.Doctor != nil {
		for _, f := range s.Doctor.Findings {
			lines = append(lines, fmt.Sprintf("%s %s: %s", f.Severity, f.ID, f.What))
		}
	}
	a.printSection("DOCTOR (`allocnet doctor` says why they matter and what repairs them)", lines)
	lines = nil
	for _, e := range s.Errors {
		lines = append(lines, fmt.Sprintf("%s ago  %s: %s", term.Age(time.Since(e.Time)), strings.Join(slices.DeleteFunc([]string{e.Operation, e.ID}, func(s string) bool { return s == "" }), " "), withoutID(e.Error, e.ID)))
	}
	a.printSection("LAST ERRORS", lines)
	a.printSection("SKIPPED FILES (`allocnet doctor` names the repair)", s.Skipped)
	if s.Daemon != nil {
		a.printSection("NOT SERVED (the daemon tries again)", s.Daemon.Problems)
	}
	a.printSection("NOT READ", s.Problems)
}

// withoutID returns an error without the ID at its beginning, which the line has already.
func withoutID(text, id string) string {
	return strings.TrimPrefix(text, fmt.Sprintf("allocation %q: ", id))
}

// printSection prints lines below a title, each one shortened to one line of the terminal.
func (a *app) printSection(title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	a.out.Printf("\n%s\n", a.out.Paint(term.Bold, title))
	for _, line := range lines {
		line = "  " + strings.ReplaceAll(line, "\n", "; ")
		if runes := []rune(line); a.out.Columns > 0 && len(runes) > a.out.Columns {
			line = string(runes[:a.out.Columns-1]) + "…"
		}
		a.out.Printf("%s\n", line)
	}
}

func (a *app) printNetworkStatus(networks []client.NetworkStatus) {
	rows := make([][]term.Cell, len(networks))
	pools := slices.ContainsFunc(networks, func(n client.NetworkStatus) bool { return n.Pool != nil })
	for i, n := range networks {
		isDefault := ""
		if n.Default {
			isDefault = "yes"
		}
		rows[i] = append(term.Cells(n.Name, isDefault, string(n.Engine)), addressCells(n.Addresses)...)
		if pools && n.Pool != nil {
			rows[i] = append(rows[i], term.Cell{Text: fmt.Sprintf("%d of %d ready", n.Pool.Ready, n.Pool.Size)})
		} else if pools {
			rows[i] = append(rows[i], term.Cell{})
		}
	}
	header := []string{"NETWORK", "DEFAULT", "ENGINE", "USED IPv4", "FREE IPv4", "USED IPv6", "FREE IPv6"}
	if pools {
		header = append(header, "POOL")
	}
	a.out.Printf("\n")
	a.out.Table(header, rows)
}

// addressCells returns the numbers of used and of free addresses, IPv4 first. A network
// without addresses of a family has empty cells.
func addressCells(counts map[string]client.AddressCounts) (row []term.Cell) {
	for _, family := range []string{"ipv4", "ipv6"} {
		c, has := counts[family]
		if !has {
			row = append(row, term.Cell{}, term.Cell{})
			continue
		}
		free := term.Cell{Text: addressNumber(c.Free)}
		if c.Free <= 0 {
			free.Style = term.Red
		}
		row = append(row, term.Cell{Text: addressNumber(c.Used)}, free)
	}
	return row
}

// addressNumber returns a count of addresses: as a power of two if there are more than IPv4
// can have.
func addressNumber(n float64) string {
	if n <= 1<<32 {
		return fmt.Sprintf("%.0f", n)
	}
	return "2^" + strings.TrimSuffix(fmt.Sprintf("%.1f", math.Log2(n)), ".0")
}

// healthCell lists the states in which there are allocations.
func healthCell(c *client.AllocationCounts) term.Cell {
	parts, look := []string{}, term.Green
	for _, state := range []struct {
		n    int
		name string
		look term.Style
	}{
		{c.Healthy, "healthy", term.Green}, {c.Adding, "being set up", term.Green}, {c.Deleting, "being removed", term.Green},
		{c.NoCheck, "without CHECK", term.Yellow}, {c.Unchecked, "not checked", term.Yellow}, {c.Unhealthy, "unhealthy", term.Red}, {c.NetnsGone, "without their network namespace", term.Red},
		{c.Interrupted, "interrupted", term.Red}, {c.Unreadable, "with a record that cannot be read", term.Red},
	} {
		if state.n > 0 {
			parts, look = append(parts, fmt.Sprintf("%d %s", state.n, state.name)), state.look
		}
	}
	if len(parts) == 0 {
		return term.Cell{Text: "none"}
	}
	return term.Cell{Text: strings.Join(parts, ", "), Style: look}
}

// unknown is the cell of what could not be read.
var unknown = term.Cell{Text: "not known", Style: term.Yellow}

// known returns a cell, or that it is not known because a part of the overview could not be read.
func known(s *client.HostStatus, part string, cell term.Cell) term.Cell {
	if slices.Contains(s.Unread, part) {
		return unknown
	}
	return cell
}

// readyCell says whether setups can be expected to work. A daemon of an older version does not.
func readyCell(s *client.HostStatus) term.Cell {
	switch {
	case s.Ready == nil:
		return unknown
	case *s.Ready:
		return term.Cell{Text: "yes", Style: term.Green}
	}
	return term.Cell{Text: "no", Style: term.Red}
}

// driftCell counts the unhealthy allocations.
func driftCell(c *client.AllocationCounts) term.Cell {
	switch {
	case c.Unhealthy > 0:
		return term.Cell{Text: term.Plural(c.Unhealthy, "allocation"), Style: term.Red}
	case c.Unchecked > 0:
		return term.Cell{Text: fmt.Sprintf("none found, but %s not checked", term.Plural(c.Unchecked, "allocation")), Style: term.Yellow}
	}
	return term.Cell{Text: "none"}
}

// doctorCell counts the findings of the doctor. A daemon of an older version reports none.
func doctorCell(d *client.DoctorSummary) term.Cell {
	var parts []string
	look := term.Green
	switch {
	case d == nil:
		return term.Cell{Text: "not examined"}
	case d.Errors > 0:
		parts, look = append(parts, term.Plural(d.Errors, "error")), term.Red
	case d.Warnings > 0:
		look = term.Yellow
	default:
		return term.Cell{Text: "nothing found by the quick checks", Style: look}
	}
	if d.Warnings > 0 {
		parts = append(parts, term.Plural(d.Warnings, "warning"))
	}
	return term.Cell{Text: strings.Join(parts, ", "), Style: look}
}

func installed(version string) string {
	if version == "" {
		return "not installed"
	}
	return version
}
