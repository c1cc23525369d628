package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/cmd/internal/manpage"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/internal/buildinfo"
)

// The exit codes. The systemd unit does not restart the daemon after exitUsage, which
// is EX_CONFIG of sysexits.h. It is not 2, because Go programs exit with 2 when they
// panic or when systemd's watchdog aborts them.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 78
)

const rootHelp = `Serve allocnet on a Unix socket.

Settings come from a file, environment variables and flags. A flag overrides the
environment, and the environment overrides the file. Example: --socket-path and
ALLOCNETD_SOCKET_PATH set "path" in the block "socket" of the file. The file is the one
that --config or ALLOCNETD_CONFIG names, otherwise ` + settings.DefaultFile + `
if it exists. The daemon writes its active settings to a file beside its socket, whose
name ends with ".settings". The CNI plugin reads that file while the daemon is not
running.

Signals:
  SIGHUP           read the settings again; running operations continue
  SIGTERM, SIGINT  finish the running operations and exit; all allocations keep their
                   networks. A second signal exits at once

Exit codes:
  0   success
  1   failure
  78  the command line or the settings are invalid`

// manFiles is the section FILES of the manual page.
const manFiles = settings.DefaultFile + `
    The settings, each with its default and a description.
/run/allocnet
    The records of allocations. A reboot empties it.
/run/allocnet/allocnetd.sock
    The socket. Members of its group can control every network of the host.
/run/allocnet/allocnetd.sock.settings
    The active settings, for the CNI plugin while the daemon is not running.
/run/allocnet/allocnetd.sock.url
    The URL of the page, with its token, if the setting ui has an address.
/etc/cni/net.d
    The network configurations.`

// usageError is the error of an invalid command line or invalid settings.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// app holds what the commands share.
type app struct {
	environ    []string
	out, errTo io.Writer
	config     string
	flags      *settings.Flags
	started    bool // a command has started, so the command line is valid
}

// execute runs the program with the given arguments and environment, and returns the
// exit code.
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

// errReported is the error of a command that has already printed the errors of the
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
	root.Version = newBuild(buildinfo.Read()).String()
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetOut(a.out)
	root.SetErr(a.errTo)
	root.PersistentFlags().StringVar(&a.config, "config", "", "file of the settings (default "+settings.DefaultFile+")")
	a.flags = settings.NewFlags(root.PersistentFlags())
	root.AddCommand(run, a.newValidate(), a.newReload(), a.newVersion())
	root.AddCommand(manpage.NewCommand(root, manpage.Options{Section: 8, Files: manFiles, SeeAlso: []string{"allocnet(1)", "systemctl(1)"}}))
	return root
}

// source returns where the settings come from.
func (a *app) source() settings.Source {
	s := settings.Source{File: a.config, Environ: a.environ, Flags: a.flags}
	for _, entry := range a.environ {
		if file, found := strings.CutPrefix(entry, settings.ConfigVariable+"="); found && s.File == "" {
			s.File = file
		}
	}
	if s.File != "" { // its path is passed to the CNI plugin
		if path, err := filepath.Abs(s.File); err == nil {
			s.File = path
		}
	}
	return s
}
