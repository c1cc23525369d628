package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/redact"
)

// The exit codes; kindsTopic explains them.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitNo      = 3
)

// usageError is the error of an invalid command line.
type usageError struct {
	error
	command *cobra.Command // the command of the line; may be nil
}

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error {
	return usageError{error: fmt.Errorf(format, args...)}
}

// stepError is an error with its hint.
type stepError struct {
	error
	step string
}

func (e stepError) Unwrap() error { return e.error }

// oneID validates the arguments of commands for one allocation.
func oneID(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("give the ID of one allocation, not %s", term.Plural(len(args), "argument"))
	}
	return nil
}

// noArgs validates the arguments of commands that take none and have no subcommands.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q: %s takes no arguments", args[0], c.CommandPath())
	}
	return nil
}

// usableID returns ErrInvalidAllocation for an invalid ID. Nothing may be derived from
// such an ID.
func usableID(ctx context.Context, conf allocnet.Service, id string) error {
	if _, err := conf.Get(ctx, id); errors.Is(err, configurator.ErrInvalidAllocation) {
		return err
	}
	return nil
}

// errLeftovers is the error of an audit that found leftovers, which are already printed.
var errLeftovers = errors.New("leftovers were found")

// finish reports the error of a command and returns the exit code.
func (a *app) finish(command *cobra.Command, err error, args []string) int {
	if err == nil {
		return exitOK
	}
	var done reported
	if errors.As(err, &done) {
		return int(done)
	}
	var usage usageError
	if !a.started || errors.As(err, &usage) && usage.command == nil || errors.Is(err, configurator.ErrInvalidAllocation) && isUsage(err) {
		err = usageError{err, command}
	}
	a.id, a.used = givenID(command), a.usedFlags(command)
	// If the flags have not been parsed, the arguments show whether JSON is requested.
	if a.flags.json || !a.started && slices.Contains(args, "--json") {
		_ = a.err.JSONLine(newErrorReport(err, a.id, a.used...))
	} else {
		a.printError(err)
	}
	return exitCode(err)
}

func (a *app) printError(err error) {
	a.err.Printf("%s %s\n", a.err.Paint(term.Red, "error:"), term.Indent(message(err), "  ")[2:])
	if h := hintFor(err, a.id, a.used...); h != "" {
		a.err.Printf("%s %s\n", a.err.Paint(term.Bold, "hint:"), h)
	}
}

// warn prints a problem that does not make the command fail.
func (a *app) warn(format string, args ...any) {
	if a.flags.json {
		_ = a.err.JSONLine(map[string]string{"warning": fmt.Sprintf(format, args...)})
		return
	}
	a.err.Printf("%s %s\n", a.err.Paint(term.Yellow, "warning:"), fmt.Sprintf(format, args...))
}

// errorReport is an error as JSON.
type errorReport struct {
	Error string `json:"error"`
	Kind  string `json:"kind"`
	Hint  string `json:"hint,omitempty"`
	// Code is the code of the CNI error, where a plugin reported one.
	Code uint `json:"code,omitempty"`
}

func newErrorReport(err error, id string, used ...string) errorReport {
	r := errorReport{Error: message(err), Kind: kindOf(err).word, Hint: hintFor(err, id, used...)}
	var e *types.Error
	if errors.As(err, &e) {
		r.Code = e.Code
	}
	return r
}

// message returns the text of an error, with a bounded length. Of joined errors, a text
// that another one repeats or continues is omitted.
func message(err error) string {
	lines := strings.Split(err.Error(), "\n")
	var kept []string
	for i, line := range lines {
		said := slices.Contains(lines[:i], line) || slices.ContainsFunc(lines, func(other string) bool {
			return strings.HasPrefix(other, line+": ")
		})
		if !said || line == "" {
			kept = append(kept, line)
		}
	}
	return redact.Bound(strings.Join(kept, "\n"))
}

func exitCode(err error) int {
	var demo *failedDemo
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &demo) && !errors.Is(err, configurator.ErrInvalidConfig):
		return exitFailure
	}
	return kindOf(err).exit
}
