package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// groups are the commands by what one wants to do, in the order of the help.
var groups = []cobra.Group{
	{ID: "networks", Title: "Set up and remove networks:"},
	{ID: "look", Title: "Find out what is going on, and what is wrong:"},
	{ID: "repair", Title: "Repair and clean up:"},
	{ID: "other", Title: "Other commands:"},
}

const kindsTopic = `Exit codes:
  0  success
  1  failure
  2  the command line, a value in it or the configuration is invalid
  3  unhealthy, not found, leftovers found, or doctor found something

With --json an error is the last line on stderr, an object: "error" is for people,
"kind" for programs and does not change; "hint" and "code" (of a CNI plugin) are
optional.

Kinds:
%s`

const flagsTopic = `Commands have the flags below. One that has no meaning for a command is an error
there: to list the allocations of a network, ls has --filter. Each flag can be set by a
variable, of which a command takes what has a meaning for it:
--state-dir by ALLOCNET_STATE_DIR, --network by ALLOCNET_NETWORK (separated by
commas), --plugin-dir by ALLOCNET_PLUGIN_DIR (separated by colons) or CNI_PATH, and so
on. A flag takes precedence. NO_COLOR switches colours off.`

// flagsTemplate is the help on the topic flags.
const flagsTemplate = `{{.Long}}

{{.InheritedFlags.FlagUsages}}`

const daemonTopic = `If allocnetd runs, it executes the commands, with its own settings; --network still
chooses the networks. With --no-daemon, with a flag for a setting (--state-dir,
--conf-dir, --plugin-dir, --engine, --subnet, --subnets-from, --timeout,
--allow-unserved), or without a daemon, this process executes them. Settings without
a flag are those that the daemon on --socket used last. This process always executes
cleanup and doctor.`

const enginesTopic = `With --engine auto, an allocation is native if this program can run a plugin of
its network itself (` + "`allocnet plugins list`" + `), in the configuration that it has;
other plugins run as binaries. An allocation keeps the engine of its setup.

Plugin binaries are searched for in the directories of --plugin-dir or CNI_PATH. If
neither is set, in "cni" beside this program, if that exists, then in /opt/cni/bin,
/usr/lib/cni and /usr/libexec/cni.`

const idsTopic = `All commands accept a runtime's ID as ls shows it: the first 12 or more hexadecimal
digits, with or without the interface. inspect, history, trace, policy explain, policy
denied and cleanup --audit also accept any unique prefix of at least 4 digits. Other
IDs have no short form.`

// namedBy is the annotation of a command that the description of another command names.
const namedBy = "named by"

// topics returns the help topics: commands that only have a help.
func topics() []*cobra.Command {
	flags := &cobra.Command{Use: "flags", Short: "Global flags and environment", Long: flagsTopic}
	flags.SetHelpTemplate(flagsTemplate)
	return []*cobra.Command{
		flags,
		{Use: "kinds", Short: "Exit codes and kinds of errors", Long: fmt.Sprintf(kindsTopic, kindsHelp())},
		{Use: "ids", Short: "IDs and their short forms", Long: idsTopic},
		{Use: "daemon", Short: "With and without the daemon", Long: daemonTopic},
		{Use: "engines", Short: "Engines and plugin binaries", Long: enginesTopic},
	}
}

// firstScreen is the help of the program: the commands by group, and the help topics. It
// fits on one screen.
func firstScreen(root *cobra.Command) string {
	var b strings.Builder
	title, _, _ := strings.Cut(root.Long, "\n")
	fmt.Fprintf(&b, "%s\n\nUsage: allocnet COMMAND [ARGUMENTS] [FLAGS] (allocnet demo works without root)\n", title)
	var others, subjects []string
	for _, g := range groups[:len(groups)-1] {
		fmt.Fprintf(&b, "\n%s\n", g.Title)
		for _, c := range root.Commands() {
			if c.GroupID == g.ID {
				fmt.Fprintf(&b, "  %-8s  %s\n", c.Name(), c.Short)
			}
		}
	}
	for _, c := range root.Commands() {
		switch {
		case c.IsAdditionalHelpTopicCommand():
			subjects = append(subjects, c.Name())
		case c.GroupID == "other" && c.Annotations[namedBy] == "":
			others = append(others, c.Name())
		}
	}
	fmt.Fprintf(&b, "\nOthers: %s\n", strings.Join(others, ", "))
	fmt.Fprintf(&b, "For more: allocnet help COMMAND, or allocnet help %s\n", strings.Join(subjects, "|"))
	return b.String()
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

// refineHelp makes the help of the program fit on one screen, and the help command refuse
// unknown commands.
func (a *app) refineHelp(root *cobra.Command) {
	root.SetHelpTemplate(root.HelpTemplate() + exitsTemplate)
	helpOf := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		if c == root {
			a.out.Printf("%s", firstScreen(root))
			return
		}
		var text strings.Builder // to a.out itself, cobra would print the error of writing
		c.SetOut(&text)
		helpOf(c, args)
		c.SetOut(nil)
		a.out.Printf("%s", text.String())
	})
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
	commands := c.ValidArgsFunction
	c.ValidArgsFunction = func(c *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		list, directive := commands(c, args, prefix)
		for _, topic := range root.Commands() {
			if len(args) == 0 && topic.IsAdditionalHelpTopicCommand() && strings.HasPrefix(topic.Name(), prefix) {
				list = append(list, cobra.CompletionWithDesc(topic.Name(), topic.Short))
			}
		}
		return list, directive
	}
}
