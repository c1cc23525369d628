package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/cmd/internal/server/settings"
)

// The exit codes. systemd's unit does not restart after exitUsage, which is EX_CONFIG
// of sysexits.h: not 2, with which Go ends a program that panics, or that systemd's
// watchdog aborts.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 78
)

const rootHelp = `Serve allocnet on a Unix socket.

Settings come from a file, environment variables and flags; a flag wins over the
environment, that over the file. --socket-path is path in the block socket of the
file, and ALLOCNETD_SOCKET_PATH. The file is that of --config or ALLOCNETD_CONFIG,
else ` + settings.DefaultFile + ` if it is there. The active settings are written
beside the socket, with ".settings" after its name: the CNI plugin uses them while the
daemon is not running.

Signals:
  SIGHUP           read the settings again; running operations continue
  SIGTERM, SIGINT  finish the running operations and exit; all allocations keep their
                   networks. A second one exits at once

Exit codes:
  0   success
  1   failure
  78  the command line or the settings are invalid`

// usageError is a command line or settings that cannot be used.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// app is what the commands share.
type app struct {
	environ    []string
	out, errTo io.Writer
	config     string
	flags      *settings.Flags
	started    bool // a command, so the command line was understood
}

// execute is the whole program but for the process around it; it returns the exit
// code.
func execute(ctx context.Context, args, environ []string, out, errTo io.Writer) int {
	a := &app{environ: environ, out: out, errTo: errTo}
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errReported):
		return exitUsage
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(errTo, "allocnetd:", strings.TrimSuffix(line, "\n"))
	}
	switch {
	case !a.started:
		fmt.Fprintln(errTo, "allocnetd: see allocnetd --help")
		return exitUsage
	case errors.As(err, &usage):
		return exitUsage
	}
	return exitFailure
}

// errReported is the error of a command that has printed what is wrong with the
// settings.
var errReported = errors.New("reported")

func (a *app) root() *cobra.Command {
	run := a.newRun()
	root := &cobra.Command{
		Use:               "allocnetd",
		Short:             "Serve allocnet on a Unix socket",
		Long:              rootHelp,
		Args:              cobra.NoArgs,
		RunE:              run.RunE,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRun:  func(*cobra.Command, []string) { a.started = true },
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	info, _ := debug.ReadBuildInfo()
	root.Version = newBuild(info).String()
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetOut(a.out)
	root.SetErr(a.errTo)
	root.PersistentFlags().StringVar(&a.config, "config", "", "file with the settings (default "+settings.DefaultFile+")")
	a.flags = settings.NewFlags(root.PersistentFlags())
	root.AddCommand(run, a.newValidate(), a.newVersion())
	return root
}

// source is where the settings come from.
func (a *app) source() settings.Source {
	s := settings.Source{File: a.config, Environ: a.environ, Flags: a.flags}
	for _, entry := range a.environ {
		if file, found := strings.CutPrefix(entry, settings.ConfigVariable+"="); found && s.File == "" {
			s.File = file
		}
	}
	if s.File != "" { // plugins are told of it
		if path, err := filepath.Abs(s.File); err == nil {
			s.File = path
		}
	}
	return s
}
