package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/cmd/internal/manpage"
)

const rootHelp = `Connect network namespaces to CNI networks, and disconnect them again.

An allocation is one network namespace under an ID. Its record is in the state
directory; commands need only the ID.`

// run runs the program with the given arguments and streams, and returns the exit code.
func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	a := newApp(in, out, errOut)
	root := newRoot(a)
	root.SetArgs(args)
	command, err := root.ExecuteContextC(ctx)
	if failure := a.out.Failure(); failure != nil {
		err = errors.Join(err, failure)
	}
	return a.finish(command, err, args)
}

// newRoot assembles the command tree.
func newRoot(a *app) *cobra.Command {
	cobra.EnableCommandSorting = false // help has the order of use
	root := &cobra.Command{
		Use:               "allocnet",
		Short:             "Connect network namespaces to CNI networks, and disconnect them again",
		Long:              rootHelp,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: a.prepare,
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	a.flags.register(root)
	_ = root.RegisterFlagCompletionFunc("network", a.completeNetworkNames)
	for _, group := range groups {
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
	add("networks", newSetup(a), newTeardown(a), newPublish(a), newLs(a), newInspect(a), newNetworks(a))
	add("look", newStatus(a), newDoctor(a), newTrace(a), newCheck(a), newHistory(a), newEvents(a), newTop(a), newUI(a))
	add("repair", newRepair(a), newRecover(a), newGC(a), newCleanup(a))
	add("other", newPolicy(a), newDemo(a), newBench(a), newPlugins(a), newReady(a), newUnpublish(a), newAttach(a), newDetach(a), newSet(a), newVersion(a))
	root.SetCompletionCommandGroupID("other")
	root.AddCommand(topics()...)
	a.addVersionFlag(root)
	root.AddCommand(manpage.NewCommand(root, manpage.Options{Section: 1, SeeAlso: []string{"allocnetd(8)", "allocnet-plugins(8)"}}))
	a.refineHelp(root)
	a.refineCompletion(root)
	return root
}

// refineCompletion makes the completion command print its help without a shell.
func (a *app) refineCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	c, _, _ := root.Find([]string{"completion"})
	c.RunE = a.runSubcommand
	if shell, _, err := c.Find([]string{"powershell"}); err == nil {
		c.RemoveCommand(shell) // allocnet runs on Linux only
	}
}
