package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/heal"
	"github.com/allocnet/allocnet/cmd/internal/hoststatus"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/record"
)

func TestLogger(t *testing.T) {
	var log bytes.Buffer
	l := newLogger(&settings.Log{Level: hclog.Debug}, &log, true).Named("x")
	l.Debug("one")
	l.Info("two")
	l.Warn("three", "error", errors.New("a\nb"))
	l.Error("four")
	require.Equal(t, "<7>[DEBUG] allocnetd.x: one\n<6>[INFO]  allocnetd.x: two\n"+
		"<4>[WARN]  allocnetd.x: three:\n<4>  error=\n<4>  | a\n<4>  | b\n<4>  \n<3>[ERROR] allocnetd.x: four\n", log.String())
	log.Reset()
	newLogger(&settings.Log{Level: hclog.Warn, JSON: true}, &log, true).Warn("five")
	require.Equal(t, `<4>{"@level":"warn","@message":"five","@module":"allocnetd"}`+"\n", log.String())
	log.Reset()
	newLogger(&settings.Log{Level: hclog.Info}, &log, false).Info("six")
	require.Regexp(t, `^\d{4}-.* \[INFO\]  allocnetd: six\n$`, log.String())
}

func TestToJournal(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	require.NoError(t, err)
	defer f.Close()
	info, err := f.Stat()
	require.NoError(t, err)
	stat := info.Sys().(*syscall.Stat_t)
	variable := func(value string) func(string) string {
		return func(name string) string { return map[string]string{"JOURNAL_STREAM": value}[name] }
	}
	require.True(t, toJournal(f, variable(fmt.Sprintf("%d:%d", stat.Dev, stat.Ino))))
	require.False(t, toJournal(f, variable(fmt.Sprintf("%d:%d", stat.Dev, stat.Ino+1))), "stderr is not the journal's stream")
	require.False(t, toJournal(f, variable("")))
	require.False(t, toJournal(&bytes.Buffer{}, variable("")))
}

// unseen is an Observer that ignores everything.
type unseen struct{}

func (unseen) Begin(ctx context.Context, _ configurator.Step) context.Context { return ctx }
func (unseen) End(context.Context, configurator.Step, error)                  {}

// countUnhealthy is a Report that keeps the number of unhealthy allocations.
type countUnhealthy struct {
	heal.Report
	n int
}

func (c *countUnhealthy) Unhealthy(n int)    { c.n = n }
func (c *countUnhealthy) Unchecked(int)      {}
func (c *countUnhealthy) Healed(client.Heal) {}

// TestFindings: what a request finds of an allocation reaches the Checker. A repair finds damage first, and
// its error has what is left.
func TestFindings(t *testing.T) {
	unhealthy := fmt.Errorf("x: %w", configurator.ErrUnhealthy)
	check := configurator.Step{Operation: "check", ID: "a"}
	counted := &countUnhealthy{}
	f := findings{unseen{}, &atomic.Pointer[heal.Checker]{}}
	f.End(t.Context(), check, unhealthy) // nothing is checked in the background
	f.checker.Store(heal.NewChecker(heal.CheckerOptions{Report: counted, Logger: hclog.NewNullLogger()}))
	for _, test := range []struct {
		step configurator.Step
		err  error
		want int
	}{
		{check, nil, 0},
		{configurator.Step{Operation: "check", ID: "a", Name: configurator.StepCheck}, unhealthy, 0},
		{check, configurator.ErrNotChecked, 0},
		{check, unhealthy, 1},
		{configurator.Step{Operation: "setup", ID: "a"}, unhealthy, 1},
		{configurator.Step{Operation: "check", ID: "b"}, nil, 1},
		{check, nil, 0},
		{configurator.Step{Operation: "repair", ID: "a", Name: configurator.StepCheck}, unhealthy, 0},
		{configurator.Step{Operation: "repair"}, errors.Join(&configurator.AllocationError{ID: "a", Err: unhealthy}, &configurator.AllocationError{ID: "b", Err: unhealthy}), 2},
		{configurator.Step{Operation: "repair", ID: "a", Name: configurator.StepCheck}, nil, 1},
		{configurator.Step{Operation: "repair"}, errors.Join(&configurator.AllocationError{ID: "a", Err: unhealthy}, &configurator.AllocationError{ID: "c", Err: record.Unfinished(unhealthy)}), 2},
		{configurator.Step{Operation: "check", ID: "a"}, nil, 1},
		{configurator.Step{Operation: "repair"}, nil, 1},
		{configurator.Step{Operation: "teardown", ID: "b"}, errors.New("no"), 1},
		{configurator.Step{Operation: "teardown", ID: "b"}, nil, 0},
	} {
		f.End(t.Context(), test.step, test.err)
		require.Equal(t, test.want, counted.n, "%+v", test.step)
	}
}

func TestFailuresAreLogged(t *testing.T) {
	var log bytes.Buffer
	f := failures{unseen{}, newLogger(&settings.Log{Level: hclog.Warn}, &log, true), &hoststatus.Recent{}}
	f.End(context.Background(), configurator.Step{Operation: "setup", ID: "a"}, nil)
	f.End(context.Background(), configurator.Step{Operation: "setup", ID: "a", Name: configurator.StepAdd}, errors.New("part"))
	require.Empty(t, log.String())
	f.End(context.Background(), configurator.Step{Operation: "setup", ID: "a", Networks: []string{"net"}}, errors.New(`no: {"password":"x"}`))
	require.Equal(t, "<4>[WARN]  allocnetd: operation failed: operation=setup alloc=a networks=[\"net\"] error=\"no: {...}\"\n", log.String())
}
