package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/netpolicy"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/cmd/internal/traffic"
	"github.com/allocnet/allocnet/internal/netlink/conntrack"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// topFlags are the flags of top.
type topFlags struct {
	once     bool
	interval time.Duration
}

func newTop(a *app) *cobra.Command {
	var f topFlags
	c := &cobra.Command{
		Use:   "top",
		Short: "Show the traffic of the allocations",
		Long: `Show the traffic of the allocations until interrupted, those with the most traffic first:
bytes per second, bytes since they were set up, packets that their links dropped, packets
that network policies denied, and tracked connections.

A terminal is redrawn; a pipe gets one table per interval. With --json each reading is
one line with an object, with packets and each interface. Packets that other rules or
bandwidth limits drop are not counted. Nothing is changed. The flows that policies denied,
and the rules, are listed by ` + "`allocnet policy denied`" + `.`,
		Example: `  allocnet top
  allocnet top --once --json | jq '.allocations | map({id, sent: .interfaces[0].sent.bytes})'`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(c *cobra.Command, _ []string) error { return a.top(c.Context(), &f) },
	}
	c.Flags().BoolVar(&f.once, "once", false, "print one table, without rates, and exit")
	c.Flags().DurationVar(&f.interval, "interval", 2*time.Second, "time between two readings")
	return c
}

// readTraffic reads the traffic of all allocations.
type readTraffic func(context.Context) (*client.HostTraffic, error)

// top prints the traffic until the context ends.
func (a *app) top(ctx context.Context, f *topFlags) error {
	const least = 100 * time.Millisecond
	if f.interval < least {
		return usagef("--interval %s: must be at least %s", f.interval, least)
	}
	read, done, err := a.trafficReader()
	if err != nil {
		return err
	}
	defer done()
	var before *client.HostTraffic
	for ticker := time.NewTicker(f.interval); ; {
		now, err := read(ctx)
		switch {
		case ctx.Err() != nil && before != nil:
			return nil // interrupted
		case err != nil:
			return fmt.Errorf("read the traffic: %w", err)
		}
		if err := a.printTraffic(f, before, now); err != nil {
			return err
		}
		if f.once {
			return nil
		}
		before = now
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// trafficReader returns a function that reads the traffic: from the daemon, or in this
// process if no daemon runs. The caller must call done at the end.
func (a *app) trafficReader() (read readTraffic, done func(), err error) {
	daemon, err := a.daemon()
	if err != nil {
		return nil, nil, err
	}
	if daemon != nil {
		return daemon.HostTraffic, func() {}, nil
	}
	conf, err := a.configurator()
	if err != nil {
		return nil, nil, err
	}
	rules, err := netpolicy.OpenRules()
	if err != nil {
		return nil, nil, err
	}
	o := traffic.Options{Service: conf, Links: rtnl.OpenHost(), Conns: conntrack.New(), Rules: rules}
	done = func() {
		if rules != nil {
			_ = rules.Close()
		}
		o.Links.Close()
		_ = o.Conns.Close()
	}
	return func(ctx context.Context) (*client.HostTraffic, error) { return traffic.Collect(ctx, o), nil }, done, nil
}

// printTraffic prints one reading. before is the previous one; nil if there is none.
func (a *app) printTraffic(f *topFlags, before, now *client.HostTraffic) error {
	switch {
	case a.flags.json && f.once:
		return a.out.JSON(now)
	case a.flags.json:
		return a.out.JSONLine(now)
	}
	rows := trafficRows(before, now)
	room := len(rows)
	if a.out.Terminal && !f.once {
		a.out.Redraw()
		room = min(room, max(1, a.out.Height()-2-len(now.Problems))) // without the header and the last line
	} else if before != nil {
		a.out.Printf("\n")
	}
	header := []string{"ID", "NETWORKS", "RECEIVED", "SENT", "DROPPED", "DENIED", "CONNECTIONS"}
	if !f.once {
		header = slices.Insert(header, 2, "RECEIVED/S", "SENT/S")
	}
	table := make([][]term.Cell, room)
	for i := range table {
		table[i] = rows[i].cells(!f.once)
	}
	term.ShortenFirst(header, table, a.out.Columns)
	a.out.Table(header, table)
	if more := len(rows) - room; more > 0 {
		a.out.Printf("and %d more with less traffic", more)
	}
	for _, p := range now.Problems {
		a.warn("%s", p)
	}
	return a.out.Failure()
}

// trafficRow is an allocation with the sums of its interfaces.
type trafficRow struct {
	id, networks           string
	received, sent         uint64  // bytes
	receivedPerS, sentPerS float64 // bytes; less than 0 if unknown
	dropped, denied        uint64
	connections            *int
}

func (r *trafficRow) cells(rates bool) []term.Cell {
	connections := ""
	if r.connections != nil {
		connections = strconv.Itoa(*r.connections)
	}
	row := term.Cells(shortID(r.id), r.networks, binarySize(float64(r.received)), binarySize(float64(r.sent)), strconv.FormatUint(r.dropped, 10), strconv.FormatUint(r.denied, 10), connections)
	if rates {
		row = slices.Insert(row, 2, term.Cells(binarySize(r.receivedPerS), binarySize(r.sentPerS))...)
	}
	return row
}

// trafficRows returns the allocations of a reading, those with the most traffic first.
func trafficRows(before, now *client.HostTraffic) []trafficRow {
	known := map[string]trafficRow{}
	seconds := 0.
	if before != nil {
		seconds = now.Time.Sub(before.Time).Seconds()
		for i := range before.Allocations {
			known[before.Allocations[i].ID] = sumOf(&before.Allocations[i])
		}
	}
	rows := make([]trafficRow, len(now.Allocations))
	for i := range now.Allocations {
		r := sumOf(&now.Allocations[i])
		r.receivedPerS, r.sentPerS = -1, -1
		// An allocation that was set up again begins with smaller counters.
		if last, ok := known[r.id]; ok && seconds > 0 && r.received >= last.received && r.sent >= last.sent {
			r.receivedPerS = float64(r.received-last.received) / seconds
			r.sentPerS = float64(r.sent-last.sent) / seconds
		}
		rows[i] = r
	}
	slices.SortStableFunc(rows, func(x, y trafficRow) int {
		return cmp.Or(cmp.Compare(y.receivedPerS+y.sentPerS, x.receivedPerS+x.sentPerS),
			cmp.Compare(y.received+y.sent, x.received+x.sent), naturally(x.id, y.id))
	})
	return rows
}

func sumOf(a *client.AllocationTraffic) trafficRow {
	r := trafficRow{id: a.ID, connections: a.Connections}
	var networks []string
	for _, i := range a.Interfaces {
		r.received += i.Received.Bytes
		r.sent += i.Sent.Bytes
		r.dropped += i.Received.Dropped + i.Sent.Dropped
		r.denied += i.Received.Denied + i.Sent.Denied
		if !slices.Contains(networks, i.Network) {
			networks = append(networks, i.Network)
		}
	}
	r.networks = strings.Join(networks, ",")
	return r
}

// binarySize returns a number of bytes with a unit; "" if it is less than 0.
func binarySize(n float64) string {
	if n < 0 {
		return ""
	}
	const units = " KMGTPE"
	unit := 0
	for n >= 1024 && unit < len(units)-1 {
		n /= 1024
		unit++
	}
	if unit == 0 {
		return fmt.Sprintf("%.0f B", n)
	}
	return fmt.Sprintf("%.1f %ciB", n, units[unit])
}
