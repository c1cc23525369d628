package manpage

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/skip"
)

func program() *cobra.Command {
	none := func(*cobra.Command, []string) {}
	root := &cobra.Command{Use: "prog", Short: "Do work", Long: "Do work.\n\n.dots and 'quotes' at the start\n\nCodes:\n  0  fine\n  1  `not` \\fine"}
	root.PersistentFlags().String("dir", "/run", "the `directory`")
	add := &cobra.Command{Use: "add NAME", Short: "Add a thing", Example: "  prog add x", Run: none, Annotations: map[string]string{"no": "it is there"}}
	add.Flags().BoolP("now", "n", false, "at once")
	add.Flags().String("old", "", "hidden")
	_ = add.Flags().MarkHidden("old")
	root.AddCommand(add, &cobra.Command{Use: "secret", Short: "No", Hidden: true, Run: none},
		&cobra.Command{Use: "codes", Short: "Kinds of codes", Long: "All of them."})
	return root
}

var build = &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{{Key: "vcs.time", Value: "2026-01-02T23:30:00-05:00"}}}

func TestPage(t *testing.T) {
	root := program()
	add, _, err := root.Find([]string{"add"})
	require.NoError(t, err)
	require.Equal(t, `.TH PROG\-ADD 8 "2026-01-03" "prog v1.2.3"
.SH NAME
prog\-add \- add a thing
.SH SYNOPSIS
.B prog add NAME [flags]
.SH DESCRIPTION
Add a thing.
.SH OPTIONS
.TP
\fB\-h\fR, \fB\-\-help\fR
help for add
.TP
\fB\-n\fR, \fB\-\-now\fR
at once
.SH GLOBAL OPTIONS
.TP
\fB\-\-dir\fR \fIdirectory\fR
the directory (default /run)
.SH EXIT STATUS
.nf
    0  success
    1  failure
    2  the command line, a value in it or the configuration is invalid
    3  it is there
.fi
.SH EXAMPLES
.nf
  prog add x
.fi
.SH SEE ALSO
.BR prog (8),
.BR other (5)
`, string(page(add, Options{Section: 8, SeeAlso: []string{"other(5)"}}, build)))

	of := string(page(root, Options{Section: 8, Files: "/etc/prog\n    The settings."}, build))
	require.Contains(t, of, "\n\\&.dots and 'quotes' at the start\n.PP\n.nf\nCodes:\n  0  fine\n  1  \\(ganot\\(ga \\efine\n.fi\n")
	require.Contains(t, of, ".SH KINDS OF CODES\nAll of them.\n")
	require.Contains(t, of, ".SH COMMANDS\n.TP\n.BR prog\\-add (8)\nAdd a thing\n")
	require.Contains(t, of, ".SH FILES\n.nf\n/etc/prog\n    The settings.\n.fi\n")
	require.NotContains(t, of, "SEE ALSO")
	require.Contains(t, string(page(add, Options{Section: 8}, nil)), `.TH PROG\-ADD 8 "" "prog "`)
}

// TestWrite writes the pages of a program, and has the formatter of the host
// read them.
func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man8")
	root := program()
	root.AddCommand(NewCommand(root, Options{Section: 8}))
	root.SetArgs([]string{"man", dir})
	require.NoError(t, root.Execute())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.Equal(t, []string{"prog-add.8", "prog-completion.8", "prog.8"}, names)

	require.ErrorContains(t, Write(root, Options{Section: 8}, "/dev/null/x"), "write manual pages: ")
	man, err := exec.LookPath("man")
	skip.Unless(t, err == nil, "man is not installed")
	for _, name := range names {
		c := exec.Command(man, "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", filepath.Join(dir, name))
		c.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "MANROFFSEQ=", "MANWIDTH=80")
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.NotContains(t, string(out), "warning")
	}
}
