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
	"github.com/allocnet/allocnet/cmd/internal/hoststatus"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/subnets"
)

func newStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the state of the daemon, the networks and the allocations",
		Long: `Show the state of the daemon, the networks with their addresses, the allocations by
health, the last errors, what differs from the records, and the versions of the host.

The command runs CHECK of every allocation, for a few seconds at most. Allocations that
were not checked in time count as "not checked". The quick checks of ` + "`allocnet doctor`" + `
run as well. The checks of plugins, leftovers, limits and kernel features are left out.
Nothing is changed. Without the daemon, this process does the same; then there are no
last errors.`,
		Annotations: exits("an allocation is unhealthy, was not checked or has lost its network namespace, a file was skipped, " +
			"something could not be read, or doctor found an error (a warning of doctor changes nothing)"),
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
	return s.Daemon != nil && len(s.Daemon.Problems) > 0 ||
		c.Unhealthy+c.Unchecked+c.NetnsGone+len(s.Skipped)+len(s.Problems) > 0 || s.Doctor != nil && s.Doctor.Errors > 0
}

func (a *app) hostStatus(ctx context.Context, daemon *client.Client) (*client.HostStatus, error) {
	if daemon != nil {
		s, err := daemon.HostStatus(ctx)
		if !errors.Is(err, client.ErrUnavailable) || a.flags.set.Changed("socket") {
			return s, err
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
	return hoststatus.Collect(ctx, hoststatus.Options{
		Service: h.Service, Networks: networks.Networks, Engine: h.Engine, ConfDir: h.ConfDir, Host: h,
	}), nil
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
	drift := term.Cell{Text: "none"}
	if n := len(s.Drift); n > 0 {
		drift = term.Cell{Text: term.Plural(s.Allocations.Unhealthy, "allocation"), Style: term.Red}
	}
	rows := [][]term.Cell{
		{{Text: "Daemon", Style: term.Bold}, daemon},
		{{Text: "Engine", Style: term.Bold}, {Text: string(s.Engine)}},
		{{Text: "Allocations", Style: term.Bold}, healthCell(&s.Allocations)},
		{{Text: "Drift", Style: term.Bold}, drift},
		{{Text: "Doctor", Style: term.Bold}, doctorCell(s.Doctor)},
		{{Text: "Kernel", Style: term.Bold}, {Text: s.Versions.Kernel}},
		{{Text: "nft", Style: term.Bold}, {Text: installed(s.Versions.NFT)}},
		{{Text: "iptables", Style: term.Bold}, {Text: installed(s.Versions.IPTables)}},
	}
	if r := s.Repairs; r.Last != nil {
		repairs := fmt.Sprintf("%d since the start, the last one %s ago", r.Count, term.Age(time.Since(*r.Last)))
		rows = slices.Insert(rows, 5, []term.Cell{{Text: "Repairs", Style: term.Bold}, {Text: join([]string{repairs, r.Change})}})
	}
	a.out.Table(nil, rows)
	a.printNetworkStatus(s.Networks)
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
		{c.Unchecked, "not checked", term.Yellow}, {c.Unhealthy, "unhealthy", term.Red}, {c.NetnsGone, "without their network namespace", term.Red},
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
