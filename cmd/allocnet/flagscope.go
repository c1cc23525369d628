package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Global flags that have a meaning for the same commands: printingFlags for all of them, readingFlags for those that
// look at records, workingFlags for those that also run plugins or examine networks, and choosingFlags for those
// that are about some networks.
var (
	printingFlags = []string{"json", "log-level"}
	readingFlags  = slices.Concat(printingFlags, []string{"state-dir", "conf-dir", "plugin-dir", "engine", "socket", "no-daemon"})
	workingFlags  = slices.Concat(readingFlags, []string{"subnet", "subnets-from", "timeout"})
	choosingFlags = slices.Concat(workingFlags, []string{"network"})
)

// accepted are the global flags that have a meaning for a command, by its name without that of the program; for
// other commands these are printingFlags. On the command line, others are errors: they look like a restriction
// that the command does not apply.
var accepted = map[string][]string{
	"setup":           slices.Concat(choosingFlags, []string{"allow-unserved"}),
	"teardown":        choosingFlags,
	"publish":         workingFlags,
	"unpublish":       workingFlags,
	"attach":          workingFlags,
	"detach":          workingFlags,
	"set":             workingFlags,
	"ls":              readingFlags,
	"inspect":         readingFlags,
	"networks":        workingFlags,
	"ready":           choosingFlags,
	"status":          workingFlags,
	"doctor":          workingFlags,
	"ui":              workingFlags,
	"trace":           readingFlags,
	"check":           workingFlags,
	"history":         readingFlags,
	"events":          readingFlags,
	"top":             readingFlags,
	"repair":          workingFlags,
	"recover":         workingFlags,
	"gc":              workingFlags,
	"cleanup":         choosingFlags,
	"demo":            slices.Concat(printingFlags, []string{"state-dir", "plugin-dir", "engine", "timeout", "subnet", "subnets-from"}),
	"bench":           slices.Concat(printingFlags, []string{"plugin-dir"}),
	"plugins install": slices.Concat(printingFlags, []string{"timeout"}),
	"policy explain":  readingFlags,
	"policy denied":   readingFlags,
}

// instead says what to use in place of a flag without a meaning.
var instead = map[string]string{
	"ls --network": "use --filter network=NAME", "attach --network": "name the network after the ID",
	"gc --network": "--search names networks in which gc also looks for allocations without a record",
}

// acceptedBy returns the global flags that have a meaning for a command.
func acceptedBy(c *cobra.Command) []string {
	if flags, ok := accepted[commandName(c)]; ok {
		return flags
	}
	return printingFlags
}

// commandName returns the name of a command without that of the program.
func commandName(c *cobra.Command) string {
	_, name, _ := strings.Cut(c.CommandPath(), " ")
	return name
}

// requireMeaning refuses global flags of the command line that have no meaning for the command. Variables are
// for all commands, so each takes what it needs.
func (f *globalFlags) requireMeaning(c *cobra.Command) error {
	var err error
	f.set.VisitAll(func(flag *pflag.Flag) {
		if err != nil || !flag.Changed || slices.Contains(acceptedBy(c), flag.Name) {
			return
		}
		err = usagef("--%s has no meaning for %s", flag.Name, c.CommandPath())
		if step := instead[commandName(c)+" --"+flag.Name]; step != "" {
			err = stepError{err, step}
		}
	})
	return err
}

// meaningless returns the global flags without a meaning for a command, as "--flag".
func (f *globalFlags) meaningless(c *cobra.Command) (list []string) {
	f.set.VisitAll(func(flag *pflag.Flag) {
		if !slices.Contains(acceptedBy(c), flag.Name) {
			list = append(list, "--"+flag.Name)
		}
	})
	return list
}
