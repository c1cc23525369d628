package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// commandFlags are the global flags of each command: those of the first line whose column has an x.
const commandFlags = `
                      json log-level state-dir conf-dir plugin-dir engine socket no-daemon subnet subnets-from timeout network allow-unserved
(none)                x    x         .         .        .          .      .      .         .      .            .       .       .
setup                 x    x         x         x        x          x      x      x         x      x            x       x       x
teardown              x    x         x         x        x          x      x      x         x      x            x       x       .
publish               x    x         x         x        x          x      x      x         x      x            x       .       .
ls                    x    x         x         x        x          x      x      x         .      .            .       .       .
inspect               x    x         x         x        x          x      x      x         .      .            .       .       .
networks              x    x         x         x        x          x      x      x         x      x            x       .       .
status                x    x         x         x        x          x      x      x         x      x            x       .       .
doctor                x    x         x         x        x          x      x      x         x      x            x       .       .
trace                 x    x         x         x        x          x      x      x         .      .            .       .       .
check                 x    x         x         x        x          x      x      x         x      x            x       .       .
history               x    x         x         x        x          x      x      x         .      .            .       .       .
events                x    x         x         x        x          x      x      x         .      .            .       .       .
top                   x    x         x         x        x          x      x      x         .      .            .       .       .
ui                    x    x         x         x        x          x      x      x         x      x            x       .       .
repair                x    x         x         x        x          x      x      x         x      x            x       .       .
recover               x    x         x         x        x          x      x      x         x      x            x       .       .
gc                    x    x         x         x        x          x      x      x         x      x            x       .       .
cleanup               x    x         x         x        x          x      x      x         x      x            x       x       .
policy                x    x         .         .        .          .      .      .         .      .            .       .       .
policy check          x    x         .         .        .          .      .      .         .      .            .       .       .
policy explain        x    x         x         x        x          x      x      x         .      .            .       .       .
policy denied         x    x         x         x        x          x      x      x         .      .            .       .       .
policy translate      x    x         .         .        .          .      .      .         .      .            .       .       .
demo                  x    x         x         .        x          x      .      .         x      x            x       .       .
bench                 x    x         .         .        x          .      .      .         .      .            .       .       .
plugins               x    x         .         .        .          .      .      .         .      .            .       .       .
plugins list          x    x         .         .        .          .      .      .         .      .            .       .       .
plugins install       x    x         .         .        .          .      .      .         .      .            x       .       .
plugins uninstall     x    x         .         .        .          .      .      .         .      .            .       .       .
ready                 x    x         x         x        x          x      x      x         x      x            x       x       .
unpublish             x    x         x         x        x          x      x      x         x      x            x       .       .
attach                x    x         x         x        x          x      x      x         x      x            x       .       .
detach                x    x         x         x        x          x      x      x         x      x            x       .       .
set                   x    x         x         x        x          x      x      x         x      x            x       .       .
version               x    x         .         .        .          .      .      .         .      .            .       .       .
man                   x    x         .         .        .          .      .      .         .      .            .       .       .
help                  x    x         .         .        .          .      .      .         .      .            .       .       .
completion            x    x         .         .        .          .      .      .         .      .            .       .       .
completion bash       x    x         .         .        .          .      .      .         .      .            .       .       .
completion zsh        x    x         .         .        .          .      .      .         .      .            .       .       .
completion fish       x    x         .         .        .          .      .      .         .      .            .       .       .
`

// TestGlobalFlagsOfCommands: a command refuses the global flags that have no meaning for it, and only these.
func TestGlobalFlagsOfCommands(t *testing.T) {
	lines := strings.Split(strings.Trim(commandFlags, "\n"), "\n")
	flags := strings.Fields(lines[0])
	var all []string
	newGlobalFlags(t).VisitAll(func(f *pflag.Flag) { all = append(all, f.Name) })
	require.ElementsMatch(t, all, flags)
	commands := map[string][]string{}
	for _, line := range lines[1:] {
		commands[strings.TrimSuffix(strings.TrimSpace(line[:22]), "(none)")] = strings.Fields(line[22:])
	}
	var names []string
	for _, c := range runnable(newRoot(newApp(nil, nil, nil))) {
		names = append(names, commandName(c))
	}
	for name := range accepted {
		require.Contains(t, names, name)
	}
	for _, name := range names {
		require.Contains(t, commands, name)
		for i, flag := range flags {
			err := prepared(t, name, flag)
			switch commands[name][i] {
			case "x":
				require.NoError(t, err, "allocnet %s --%s", name, flag)
			default:
				require.EqualError(t, err, "--"+flag+" has no meaning for "+strings.TrimSpace("allocnet "+name))
				require.True(t, isUsage(err))
			}
		}
	}
	require.Len(t, commands, len(names))
}

// TestVariablesOfCommands: variables are for all commands.
func TestVariablesOfCommands(t *testing.T) {
	t.Setenv("ALLOCNET_NETWORK", "web")
	t.Setenv("ALLOCNET_STATE_DIR", t.TempDir())
	for _, name := range []string{"ls", "gc", "version"} {
		require.NoError(t, prepared(t, name, ""))
	}
}

// TestNetworkElsewhere: the error about --network says what has the meaning that the command seems to give it.
func TestNetworkElsewhere(t *testing.T) {
	for line, want := range map[string]string{
		"ls --network nosuch":             "use --filter network=NAME",
		"gc --none --network web":         "--search names networks",
		"attach web back --network front": "name the network after the ID",
		"teardown web --gone --network a": "--gone has the networks from the record",
		"cleanup --audit --network a":     "--network says where allocations of the given IDs were",
		"cleanup --orphans --network a":   "--network says where allocations of the given IDs were",
	} {
		report := runWith("", append(strings.Fields(line), "--json", "--no-daemon", "--state-dir", t.TempDir())...).failure(t, exitUsage)
		require.Contains(t, report.Error+report.Hint, want, line)
		require.Equal(t, "invalid", report.Kind)
	}
}

// prepared prepares a command with a global flag on its command line.
func prepared(t *testing.T, name, flag string) error {
	a := newApp(nil, nil, nil)
	root := newRoot(a)
	c, _, err := root.Find(strings.Fields(name))
	require.NoError(t, err)
	if flag != "" {
		value, ok := map[string]string{"json": "true", "no-daemon": "true", "allow-unserved": "true", "timeout": "1s", "engine": "native", "log-level": "info", "subnet": "10.9.0.0/16"}[flag]
		if !ok {
			value = "/x"
		}
		require.NoError(t, a.flags.set.Set(flag, value))
	}
	return a.prepare(c, nil)
}

// runnable returns a command and those below it that do something.
func runnable(c *cobra.Command) (list []*cobra.Command) {
	if c.Runnable() {
		list = append(list, c)
	}
	for _, sub := range c.Commands() {
		list = slices.Concat(list, runnable(sub))
	}
	return list
}

func newGlobalFlags(t *testing.T) *pflag.FlagSet {
	t.Helper()
	a := newApp(nil, nil, nil)
	newRoot(a)
	return a.flags.set
}
