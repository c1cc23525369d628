package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/internal/wire"
	"github.com/allocnet/allocnet/policy"
)

func newEvents(a *app) *cobra.Command {
	var after uint64
	c := &cobra.Command{
		Use:   "events",
		Short: "Follow the events of the daemon",
		Long: `Follow the events of the daemon until interrupted: every operation with its steps and
their durations, removals by force, repairs, reloads, changes of the networks.

Each line has the time and the number of an event. With --json each line is one object.
--after continues after the event with that number, as far back as the daemon keeps
events. Without it, or with 0, only new events are printed.`,
		Example: `  allocnet events
  allocnet events --json | jq -c 'select(.type == "forced")'`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(c *cobra.Command, _ []string) error { return a.events(c, after) },
	}
	c.Flags().Uint64Var(&after, "after", 0, "number of the last known event (default: new events only)")
	return c
}

// events prints the daemon's events until the context ends.
func (a *app) events(c *cobra.Command, after uint64) error {
	daemon, err := a.daemon()
	if err != nil {
		return err
	}
	if daemon == nil {
		return a.withoutDaemon()
	}
	for e, err := range daemon.Events(c.Context(), after) {
		switch {
		case err != nil:
			return followError(err)
		case a.flags.json:
			if err := a.out.JSONLine(wire.Event{ID: e.ID, Time: e.Time, Type: e.Type, Data: e.JSON}); err != nil {
				return err
			}
		default:
			a.out.Printf("%s  %d  %s\n", a.out.Paint(term.Bold, e.Time.Local().Format("15:04:05.000")), e.ID, a.eventText(&e))
		}
	}
	return nil
}

// withoutDaemon returns why the daemon is not used.
func (a *app) withoutDaemon() error {
	flag := a.flags.localFlag()
	if a.flags.noDaemon {
		flag = "no-daemon"
	}
	if flag != "" {
		return usagef("--%s: only the daemon has events; omit this flag", flag)
	}
	return followError(fmt.Errorf("%w: no daemon listens on %s", client.ErrUnavailable, a.flags.socket))
}

// followError adds the next step, which differs from the step of commands that also work
// without the daemon.
func followError(err error) error {
	switch {
	case errors.Is(err, client.ErrUnavailable):
		return stepError{fmt.Errorf("follow events: %w", err), "start it (systemctl start allocnetd)[--socket|, or name its socket (--socket)]"}
	case errors.Is(err, io.EOF):
		return stepError{fmt.Errorf("follow events: allocnetd ended the connection: %w", err),
			"when allocnetd runs again, repeat the command; [--after|--after with the last number printed|the last number printed, in place of the given one,] ([--json|with --json ]\"id\") continues after that event"}
	}
	return fmt.Errorf("follow events: %w", err)
}

// eventText returns an event as a line.
func (a *app) eventText(e *client.Event) string {
	switch d := e.Data.(type) {
	case *client.Operation:
		return a.operationText(d)
	case *client.Forced:
		var objects []string
		for _, l := range d.Removed {
			objects = append(objects, l.String())
		}
		return fmt.Sprintf("%s %s: %s", a.out.Paint(term.Yellow, "forced"), d.ID, strings.Join(objects, ", "))
	case *client.Reload:
		if d.Error != "" {
			return a.out.Paint(term.Red, "reload refused") + ": " + d.Error
		}
		if len(d.Restart) > 0 {
			return "reloaded, " + a.out.Paint(term.Yellow, "restart needed") + " to change " + strings.Join(d.Restart, ", ")
		}
		return "reloaded"
	case *client.Configuration:
		return a.configurationText(d)
	case *client.Heal:
		return a.healText(d)
	case *client.Denied:
		return a.deniedText(d)
	case *client.Lost:
		return a.out.Paint(term.Yellow, "events were lost")
	}
	return e.Type + " " + string(e.JSON)
}

func (a *app) configurationText(d *client.Configuration) string {
	text := "no network is active"
	if d.Primary != "" {
		text = fmt.Sprintf("network %s (%s) is active", d.Primary, d.File)
	}
	if d.NotReady != "" {
		text += "; " + a.out.Paint(term.Yellow, "not ready") + ": " + d.NotReady
	}
	if len(d.Problems) > 0 {
		text += "; " + a.out.Paint(term.Yellow, "problems") + ": " + strings.Join(d.Problems, "; ")
	}
	return text
}

func (a *app) healText(d *client.Heal) string {
	if d.Unhealthy != "" {
		return fmt.Sprintf("%s %s: %s", a.out.Paint(term.Red, "unhealthy"), d.Unhealthy, d.Error)
	}
	text := fmt.Sprintf("%s %d allocations (%s)", a.out.Paint(term.Yellow, "restored"), d.Restored, cmp.Or(d.Change, d.Cause))
	if d.Error != "" {
		text += ": " + a.out.Paint(term.Red, d.Error)
	}
	if d.BackOff > 0 {
		text += fmt.Sprintf("; %s: the next repair in %s at the earliest", a.out.Paint(term.Red, "something keeps removing it"), time.Duration(d.BackOff*float64(time.Second)))
	}
	return text
}

// deniedText returns denied flows as a line.
func (a *app) deniedText(d *client.Denied) string {
	var flows []string
	for i := range d.Flows {
		f := &d.Flows[i]
		towards := "to"
		if f.Direction == policy.Ingress.String() {
			towards = "from"
		}
		text := fmt.Sprintf("%s %s %s %s %s, %s", f.ID, f.Direction, serviceOf(f), towards, peerOf(f), term.Plural(int(f.Packets), "packet"))
		if f.Rule != "" {
			text += fmt.Sprintf(", by %s of %s", f.Rule, policyOf(f))
		}
		flows = append(flows, text)
	}
	if d.Omitted > 0 {
		flows = append(flows, fmt.Sprintf("and %s with %s", term.Plural(d.Omitted, "more flow"), term.Plural(int(d.OmittedPackets), "packet")))
	}
	for _, u := range d.Unlisted {
		flows = append(flows, fmt.Sprintf("%s %s, %s of flows that are not listed", u.ID, u.Direction, term.Plural(int(u.Packets), "packet")))
	}
	return a.out.Paint(term.Yellow, "denied") + " " + strings.Join(flows, "; ")
}

func (a *app) operationText(o *client.Operation) string {
	outcome := a.out.Paint(term.Green, o.Outcome)
	if o.Error != "" {
		outcome = a.out.Paint(term.Red, o.Outcome)
	}
	words := []string{string(o.Operation)}
	for _, w := range []string{o.Name, o.ID, strings.Join(o.Networks, ","), string(o.Engine), pairsText(o.Args)} {
		if w != "" {
			words = append(words, w)
		}
	}
	text := fmt.Sprintf("%s %s in %s", strings.Join(words, " "), outcome, tookText(o.Seconds))
	var steps []string
	for _, s := range o.Steps {
		steps = append(steps, s.Step+" "+tookText(s.Seconds))
	}
	if len(steps) > 0 {
		text += " (" + strings.Join(steps, ", ") + ")"
	}
	if o.Error != "" {
		text += ": " + o.Error
	}
	return text
}
