package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/cmd/internal/demo"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/internal/privhost"
)

func newDemo(a *app) *cobra.Command {
	var onHost bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "Demonstrate setup and teardown of two allocations",
		Long: `Demonstrate two allocations on the embedded network, step by step: they are set up,
answer on their host ports and are torn down, and nothing is left.

By default the demo runs in private namespaces: nothing on this host changes, and no
root is needed. --engine exec needs the plugin binaries and iptables.

With --json every step is a line of JSON.`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(c *cobra.Command, _ []string) error { return a.demo(c.Context(), onHost) },
	}
	c.Flags().BoolVar(&onHost, "on-host", false, "run the demo on this host instead of in private namespaces; needs root")
	return c
}

// reported is the exit code of a run whose errors have been reported.
type reported int

func (r reported) Error() string { return fmt.Sprintf("exit status %d", int(r)) }

// failedDemo replaces errors that were shown with their steps.
type failedDemo struct {
	failed, steps int
	cause         error
	clean         bool // everything was torn down
}

func (e *failedDemo) Error() string {
	if errors.Is(e.cause, demo.ErrInterrupted) && e.clean {
		return demo.ErrInterrupted.Error() + "; everything was torn down"
	}
	if errors.Is(e.cause, demo.ErrInterrupted) {
		return demo.ErrInterrupted.Error() + "; not everything could be torn down: see the failed steps"
	}
	return fmt.Sprintf("%d of %s of the demo failed", e.failed, term.Plural(e.steps, "step"))
}

func (e *failedDemo) Unwrap() error { return e.cause }

// demo runs the demo on this host or on a private host.
func (a *app) demo(ctx context.Context, onHost bool) error {
	if _, err := a.config(); err != nil {
		return err
	}
	if onHost {
		if os.Geteuid() != 0 {
			return fmt.Errorf("run the demo on this host: %w", fs.ErrPermission)
		}
		return a.showDemo(ctx, true)
	}
	var err error
	shown := false
	code, enterErr := privhost.Enter(privhost.Options{Dirs: []string{a.flags.stateDir}}, func() int {
		shown = true
		err = a.showDemo(ctx, false)
		return exitCode(err)
	})
	switch {
	case enterErr != nil:
		return fmt.Errorf("%w: %w", demo.ErrNoPrivateHost, enterErr)
	case !shown && code != 0: // in the re-executed process
		return reported(code)
	}
	return err
}

// showDemo runs the demo on the host of this process.
func (a *app) showDemo(ctx context.Context, onHost bool) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	show := a.newShow()
	if !a.flags.json {
		where := "in private namespaces: nothing on this host changes"
		if onHost {
			where = "on this host"
		}
		a.out.Printf("%s %s\n", a.out.Paint(term.Bold, "allocnet demo"), where)
	}
	summary, err := demo.Run(ctx, demo.Options{Config: cfg, OnHost: onHost, Reporter: show})
	if err != nil {
		err = &failedDemo{failed: show.failures(), steps: summary.Steps, cause: err, clean: summary.Clean}
	}
	show.summarize(summary, err == nil)
	return err
}

// show is a demo.Reporter that also prints a summary.
type show interface {
	demo.Reporter
	failures() int
	summarize(s *demo.Summary, ok bool)
}

func (a *app) newShow() show {
	if a.flags.json {
		return &jsonShow{app: a}
	}
	return &textShow{app: a}
}

// textShow prints text.
type textShow struct {
	*app
	section string
	failed  int
}

func (t *textShow) failures() int { return t.failed }

// Begin shows the running step as a status line.
func (t *textShow) Begin(section, name string) {
	if section != t.section {
		t.section = section
		t.out.Printf("\n%s\n", t.out.Paint(term.Bold, section))
	}
	t.out.SetStatus("  … " + name)
}

// End writes the line of a step.
func (t *textShow) End(s demo.Step) {
	ok, failed := "ok  ", "FAIL"
	if t.out.Terminal {
		ok, failed = "✓", "✗"
	}
	sign := t.out.Paint(term.Green, ok)
	if s.Err != nil {
		t.failed++
		sign = t.out.Paint(term.Red, failed)
	}
	name, took := fmt.Sprintf("%-40s", s.Name), fmt.Sprintf("%6s", term.Span(s.Took))
	head := fmt.Sprintf("  %s %s %s", sign, name, t.out.Paint(term.Dim, took))
	const beside = "      "
	left := t.out.Columns - len("  ✓ ") - utf8.RuneCountInString(name+took) - len(" ") - len("  ")
	if t.out.Columns == 0 || utf8.RuneCountInString(s.Detail) <= left {
		t.out.Printf("%s\n", strings.TrimRight(head+"  "+s.Detail, " "))
	} else {
		t.out.Printf("%s\n%s\n", head, term.Indent(strings.Join(term.Fold(s.Detail, t.out.Columns-len(beside)), "\n"), beside))
	}
	if s.Err != nil {
		t.out.Printf("%s\n", t.out.Paint(term.Red, term.Indent(s.Err.Error(), "      ")))
	}
}

func (t *textShow) summarize(s *demo.Summary, ok bool) {
	if !ok {
		t.out.Printf("\n")
		return
	}
	text := fmt.Sprintf("%s in %s: set up in %s, %s answered (median %s), torn down in %s; nothing is left",
		term.Plural(s.Steps, "step"), term.Span(s.Took), spans(s.Setups), term.Plural(s.Requests, "request"), term.Span(s.Answer), spans(s.Teardowns))
	t.out.Printf("\n%s %s\n", t.out.Paint(term.Green, t.out.Mark()), term.Indent(strings.Join(term.Fold(text, t.out.Columns-len("  ")), "\n"), "  ")[2:])
}

// spans lists durations in their order, because the first one on a host is longer.
func spans(list []time.Duration) string {
	texts := make([]string, len(list))
	for i, d := range list {
		texts[i] = term.Span(d)
	}
	return strings.Join(texts, " and ")
}

// jsonShow writes one line per step and one for the summary.
type jsonShow struct {
	*app
	failed int
}

type stepLine struct {
	Section string  `json:"section"`
	Step    string  `json:"step"`
	OK      bool    `json:"ok"`
	Ms      float64 `json:"ms"`
	Detail  string  `json:"detail,omitempty"`
	Error   string  `json:"error,omitempty"`
}

type summaryLine struct {
	OK           bool      `json:"ok"`
	Clean        bool      `json:"clean"` // everything was torn down
	Interrupted  bool      `json:"interrupted"`
	Steps        int       `json:"steps"`
	Failed       int       `json:"failed"`
	Ms           float64   `json:"ms"`
	SetupMs      []float64 `json:"setupMs"`
	TeardownMs   []float64 `json:"teardownMs"`
	Requests     int       `json:"requests"`
	RequestP50Ms float64   `json:"requestP50Ms"`
}

func (j *jsonShow) failures() int { return j.failed }

// Begin does nothing: a step is one line.
func (j *jsonShow) Begin(_, _ string) {}

// End writes the line of a step.
func (j *jsonShow) End(s demo.Step) {
	line := stepLine{Section: s.Section, Step: s.Name, OK: s.Err == nil, Ms: milliseconds(s.Took), Detail: s.Detail}
	if s.Err != nil {
		j.failed++
		line.Error = s.Err.Error()
	}
	_ = j.out.JSONLine(line)
}

func (j *jsonShow) summarize(s *demo.Summary, ok bool) {
	line := summaryLine{
		OK: ok, Clean: s.Clean, Interrupted: s.Interrupted, Steps: s.Steps, Failed: j.failed, Ms: milliseconds(s.Took), Requests: s.Requests,
		RequestP50Ms: milliseconds(s.Answer), SetupMs: []float64{}, TeardownMs: []float64{},
	}
	for _, d := range s.Setups {
		line.SetupMs = append(line.SetupMs, milliseconds(d))
	}
	for _, d := range s.Teardowns {
		line.TeardownMs = append(line.TeardownMs, milliseconds(d))
	}
	_ = j.out.JSONLine(line)
}

func milliseconds(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}
