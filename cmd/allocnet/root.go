package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/cmd/internal/manpage"
)

const rootHelp = `Set up and remove the network of network namespaces through CNI.

An allocation is one network namespace under an ID. Its record is in the state
directory; commands need only the ID.

To see it work, without root and without a change to this host:

  allocnet demo

IDs:
  All commands accept a runtime's ID as ls shows it: the first 12 digits, with or
  without the interface. Commands that change nothing, except check, also accept any
  unique prefix of at least 4 digits. Other IDs have no short form.

Exit codes:
  0  success
  1  failure
  2  the command line, a value in it or the configuration is invalid
  3  unhealthy, not found, leftovers found, or doctor found something

With --json an error is the last line on stderr, an object: "error" is for people,
"kind" for programs and does not change; "hint" and "code" (of a CNI plugin) are
optional.
Kinds:
%s

Environment:
  Every global flag can be set by a variable: --state-dir by ALLOCNET_STATE_DIR,
  --network by ALLOCNET_NETWORK (separated by commas), --plugin-dir by
  ALLOCNET_PLUGIN_DIR (separated by colons) or CNI_PATH, and so on. A flag wins.
  NO_COLOR switches colours off.

The daemon:
  If allocnetd runs, it executes the commands, with its own settings; --network still
  chooses the networks. With --no-daemon, with a flag for a setting (--state-dir,
  --conf-dir, --plugin-dir, --engine, --subnet, --timeout, --allow-unserved), or
  without a daemon, this process executes them. Settings without a flag are those
  that the daemon on --socket used last. This process always executes cleanup
  and doctor.

Engines:
  With --engine auto, an allocation is native if this program can run a plugin of
  its network itself (` + "`allocnet plugins list`" + `), in the configuration that it has;
  other plugins run as binaries. It keeps the engine that it was set up with.

Plugin binaries are looked for in the directories of --plugin-dir or CNI_PATH; without
either in "cni" beside this program, where that exists, then in /opt/cni/bin,
/usr/lib/cni and /usr/libexec/cni.`

// run runs the program with the given arguments and streams, and returns the exit code.
func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	a := newApp(in, out, errOut)
	root := newRoot(a)
	root.SetArgs(args)
	command, err := root.ExecuteContextC(ctx)
	if failure := a.out.failure(); failure != nil {
		err = errors.Join(err, failure)
	}
	return a.finish(command, err, args)
}

// newRoot assembles the command tree.
func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:               "allocnet",
		Short:             "Set up and remove the network of network namespaces",
		Long:              fmt.Sprintf(rootHelp, kindsHelp()),
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: a.prepare,
	}
	root.SetHelpTemplate(root.HelpTemplate() + exitsTemplate)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	a.flags.register(root)
	a.completeNetworks(root)
	for _, group := range []cobra.Group{
		{ID: "allocations", Title: "Allocations:"},
		{ID: "host", Title: "The host:"},
	} {
		root.AddGroup(&group)
	}
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			for _, runs := range append(c.Commands(), c) {
				runs.RunE = a.running(runs.RunE)
			}
			root.AddCommand(c)
		}
	}
	add("allocations", newSetup(a), newCheck(a), newTeardown(a), newLs(a), newInspect(a), newHistory(a), newTrace(a))
	add("host", newNetworks(a), newStatus(a), newTop(a), newUI(a), newDoctor(a), newReady(a), newEvents(a), newRepair(a), newRecover(a), newGC(a), newCleanup(a), newPlugins(a), newDemo(a), newBench(a))
	add("", newVersion(a))
	a.addVersionFlag(root)
	root.AddCommand(manpage.NewCommand(root, manpage.Options{Section: 1, SeeAlso: []string{"allocnetd(8)", "allocnet-plugins(8)"}}))
	refineHelp(root)
	refineCompletion(root)
	return root
}

// exitsTemplate ends the help of the commands that use exitNo.
const exitsTemplate = `{{with index .Annotations "no"}}
Exit codes:
  0  success
  1  failure
  2  the command line, a value in it or the configuration is invalid
  3  {{.}}
{{end}}`

// exits returns the annotation with the condition under which a command ends with
// exitNo.
func exits(no string) map[string]string { return map[string]string{"no": no} }

// refineHelp makes the help command refuse unknown commands.
func refineHelp(root *cobra.Command) {
	root.InitDefaultHelpFlag() // before parsing: otherwise the next flag would become its value
	root.InitDefaultHelpCmd()
	c, _, _ := root.Find([]string{"help"})
	c.Run = nil
	c.RunE = func(_ *cobra.Command, args []string) error {
		topic, rest, err := root.Find(args)
		if err == nil && len(rest) > 0 {
			err = fmt.Errorf("unknown command %q for %q", rest[0], topic.CommandPath())
		}
		if err != nil {
			return err
		}
		topic.InitDefaultHelpFlag()
		return topic.Help()
	}
}

// refineCompletion makes the completion command print its help without a shell.
func refineCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	c, _, _ := root.Find([]string{"completion"})
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
}
