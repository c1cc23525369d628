package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/demo"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/state/lease"
	"github.com/allocnet/allocnet/portmap"
)

// hint is the next step to take after an error; "" where the error says it. It does not
// advise what was used, as "--flag".
func hint(err error, used ...string) string {
	return choice.ReplaceAllStringFunc(fullHint(err), func(text string) string {
		parts := choice.FindStringSubmatch(text)
		if slices.Contains(used, parts[1]) {
			return parts[3]
		}
		return parts[2]
	})
}

// choice is a part of a hint that names a flag, [--flag|text] or, with what is said where
// the flag was used, [--flag|text|other text].
var choice = regexp.MustCompile(`\[(--[a-z-]+)\|([^|\]]*)\|?([^|\]]*)\]`)

// fullHint is a hint with all its choices.
func fullHint(err error) string {
	var failed *failedDemo
	if errors.As(err, &failed) {
		err = failed.cause
		if errors.Is(err, context.Canceled) {
			return "" // the demo cleans up behind itself
		}
	}
	var broken *brokenError
	if errors.As(err, &broken) {
		err = fmt.Errorf("%w: %w", errBroken, broken.cause)
	}
	var texts []string
	for _, h := range hints {
		if !h.applies(err) || len(texts) > 0 && !h.install {
			continue
		}
		texts = append(texts, h.text(err))
		if !h.install {
			break
		}
	}
	return strings.Join(texts, "; and ")
}

// usedFlags are the flags that a command line has, as "--flag".
func usedFlags(c *cobra.Command) (used []string) {
	if c != nil {
		c.Flags().Visit(func(f *pflag.Flag) { used = append(used, "--"+f.Name) })
	}
	return used
}

// givenID is the ID that the command line of a command for one allocation has.
func givenID(c *cobra.Command) string {
	if c == nil || !strings.HasSuffix(strings.Fields(c.Use + " -")[1], "ID") || c.Flags().NArg() != 1 {
		return ""
	}
	return c.Flags().Arg(0)
}

// hintFor is the hint, with the ID of the allocation in its commands: the one that the
// error is about, or else the given one.
func hintFor(err error, id string, used ...string) string {
	text := hint(err, used...)
	var about *configurator.AllocationError
	if errors.As(err, &about) {
		id = about.ID
	}
	if names.ValidateContainer(id) != nil {
		return text
	}
	return idInCommand.ReplaceAllString(text, "${1}"+id+"${2}")
}

// idInCommand is where a command of a hint has an ID.
var idInCommand = regexp.MustCompile("(`allocnet [a-z -]+ )ID([ `])")

// hints are in order: the first one that applies is given, or all of those that
// tell what to install. What lies nearest to the cause comes first.
var hints = []struct {
	applies func(error) bool
	text    func(error) string
	install bool
}{
	{applies: is(context.Canceled), text: say("it was interrupted; what had been begun was rolled back or is recorded: see `allocnet ls`")},
	{applies: as[stepError], text: nextStep},
	{applies: is(client.ErrUnavailable), text: say("start it (systemctl start allocnetd)[--socket|, say where it listens (--socket)], or do without (--no-daemon)")},
	{applies: is(client.ErrConflists), text: say(
		"name a network of the daemon instead, or have root set allow_conflists in the settings of the daemon")},
	{applies: is(client.ErrForbidden), text: say("the daemon serves root and the group of its socket: try again with sudo, or join the group")},
	{applies: is(client.ErrBusy), text: say("try again in a moment")},
	{applies: is(demo.ErrNoPrivateHost), text: func(error) string { return privateHostHint() }},
	{applies: is(configurator.ErrPluginNotInstalled), install: true, text: say(
		"for the plugins, on Debian: apt-get install containernetworking-plugins (they go to /usr/lib/cni), or, " +
			"in the source of allocnet: make plugins (they go to bin/cni)[--plugin-dir|, or --plugin-dir with their directory|, or name another directory of plugins]")},
	{applies: iptablesMissing, install: true, text: say("plugins need iptables, on Debian: apt-get install iptables")},
	{applies: is(configurator.ErrUnprivileged), text: say("run allocnet with sudo, or the daemon with the rights of its systemd unit; only `allocnet demo` works without")},
	{applies: notPermitted, text: say("this needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN): try again with sudo; only `allocnet demo` works without")},
	{applies: as[*allocnet.RecordError], text: recordHint},
	{applies: keepsOldAddress, text: bridgeHint},
	{applies: both(is(errBroken), is(configurator.ErrUnhealthy)), text: say(
		"a broken one comes back with `allocnet setup`, with the same arguments as before; where its network namespace is gone, " +
			"`allocnet teardown ID` first removes what is left")},
	{applies: saying(rtnl.ErrBridgeFull, "exchange full"), text: say(
		"`allocnet ls` lists what is on the bridge: `allocnet teardown ID` and `allocnet gc` make room; or use another network[--network| (--network)]")},
	{applies: saying(lease.ErrExhausted), text: say(
		"`allocnet ls` lists who has an address: `allocnet teardown ID` and `allocnet gc` give some back; " +
			"or give the network a larger subnet, or use another one[--network| (--network)]")},
	{applies: saying(nil, "requested IP address"), text: say("`allocnet ls` tells who has the address; ask for another address, or for none")},
	{applies: saying(lease.ErrDuplicate), text: say(
		"an earlier allocation with this ID left its address[--force|: `allocnet cleanup --force ID` gives it back]")},
	{applies: saying(ruleset.ErrPortTaken), text: portTakenHint},
	{applies: is(configurator.ErrListener), text: say("`ss -lntup` lists the processes that listen; the setting host_listeners of the daemon says what to do about them")},
	{applies: is(configurator.ErrInUse), text: say(
		"every allocation needs a network namespace of its own: [--netns|--netns with another path|another path]" +
			"[--create|, or --create once this one is gone]; `allocnet ls` lists what is set up")},
	{applies: is(configurator.ErrSetUp), text: say("`allocnet teardown ID` takes it down; force is for what that cannot remove")},
	{applies: is(configurator.ErrNotChecked), text: say(
		"the network is left as it is: mend what keeps the plugin from looking (a longer timeout[--timeout|, --timeout], where it hangs), and try again")},
	{applies: is(configurator.ErrUnknownNetwork), text: say(
		"`allocnet networks` lists the networks and the files that were skipped; allocnet, the embedded one, needs no file[--network|: --network allocnet]")},
	{applies: is(configurator.ErrUnserved), text: say(
		"`allocnet networks` lists what each network serves[--network|, --network chooses another one]; " +
			"to go without: [--allow-unserved|--allow-unserved, or ]allow_unserved in the settings of the daemon")},
	{applies: is(configurator.ErrExists), text: say("`allocnet inspect ID` shows what is set up; a setup that need not make it takes it as it is")},
	{applies: is(configurator.ErrDifferent), text: say("`allocnet inspect ID` shows what is set up; `allocnet teardown ID` makes way")},
	{applies: isConflict, text: conflictHint},
	{applies: is(configurator.ErrUnhealthy), text: unhealthyHint},
	{applies: is(errLeftovers), text: say("`allocnet cleanup --force` with the same IDs removes them")},
	{applies: netnsMissing, text: say("make it first (ip netns add NAME), or have it made[--create|: setup --create]")},
	{applies: is(configurator.ErrNotFound), text: say("`allocnet ls` lists what is set up[--state-dir|; --state-dir says where to look]")},
	{applies: is(configurator.ErrIncomplete), text: say("`allocnet teardown ID` can be repeated[--force|; `allocnet cleanup --force ID` does it without plugins]")},
	{applies: is(context.DeadlineExceeded), text: say("a plugin hangs, or needs a longer timeout[--timeout| (--timeout)]")},
	{applies: isUsage, text: usageHint},
	{applies: is(errOutput), text: say("only the text is lost: what the command did stands")},
}

func say(text string) func(error) string { return func(error) string { return text } }

func nextStep(err error) string {
	var e stepError
	errors.As(err, &e)
	return e.step
}

// saying finds an error, or one of some texts: what a plugin binary says, the
// reference plugins' among them, arrives as text.
func saying(target error, texts ...string) func(error) bool {
	if target != nil {
		texts = append(texts, target.Error())
	}
	return func(err error) bool {
		said := err.Error()
		return errors.Is(err, target) || slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(said, text) })
	}
}

// iptablesMissing also reads texts: what a plugin says arrives as text.
func iptablesMissing(err error) bool {
	text := err.Error()
	return (errors.Is(err, exec.ErrNotFound) || strings.Contains(text, exec.ErrNotFound.Error())) &&
		(strings.Contains(text, "iptables") || strings.Contains(text, "ip6tables"))
}

func notPermitted(err error) bool {
	if client.Remote(err) { // root is not what the daemon lacks
		return false
	}
	text := strings.ToLower(err.Error())
	return errors.Is(err, fs.ErrPermission) ||
		strings.Contains(text, "operation not permitted") || strings.Contains(text, "permission denied")
}

func conflictHint(err error) string {
	var e *portmap.ConflictError
	if errors.As(err, &e) && e.OtherID != "" && e.OtherID != e.ID {
		return fmt.Sprintf("choose another host port, or free it: allocnet teardown %s", e.OtherID)
	}
	return "publish every host port only once"
}

// portTakenHint is for a port of which no record tells, or conflictHint would
// have been given.
func portTakenHint(err error) string {
	const another = "choose another host port"
	var e *allocnet.PortTakenError
	if !errors.As(err, &e) || e.ID == "" || names.IsHash(e.ID) {
		return another + "; `allocnet ls` lists those of all allocations"
	}
	return fmt.Sprintf("%s, or free it: `allocnet teardown %s`[--force|, or, if no record tells of it, `allocnet cleanup --force %[2]s`]", another, e.ID)
}

func netnsMissing(err error) bool {
	return errors.Is(err, configurator.ErrInvalidAllocation) && errors.Is(err, fs.ErrNotExist)
}

// recordHint says how to go on without a record.
func recordHint(err error) string {
	var e *allocnet.RecordError
	errors.As(err, &e)
	if errors.Is(e, allocnet.ErrNewer) {
		return fmt.Sprintf("use the newer allocnet that wrote %s", e.File)
	}
	return fmt.Sprintf("%s is damaged: `allocnet teardown %s[--netns| --netns PATH`, with the path of its network namespace,|`] "+
		"takes the allocation away without it", e.File, e.ID)
}

// oldAddress is how the bridge plugin says that its bridge was made for another
// subnet.
var oldAddress = regexp.MustCompile(`"?([^\s"\\]+)\\?"? already has an IP address different from`)

func keepsOldAddress(err error) bool { return oldAddress.MatchString(err.Error()) }

func bridgeHint(err error) string {
	return fmt.Sprintf("a bridge keeps the subnet that it was made with: go on with the old one[--subnet| (--subnet)], or, "+
		"once no allocation uses the bridge: ip link del %s", oldAddress.FindStringSubmatch(err.Error())[1])
}

// unhealthyHint tells a network that is broken from one whose namespace is gone, or has
// made way for another one, which neither repair nor setup accepts.
func unhealthyHint(err error) string {
	switch {
	case netnsMissing(err):
		return "its network namespace is gone: `allocnet teardown ID` removes what is left on the host"
	case errors.Is(err, configurator.ErrInvalidAllocation): // what is at the path is none, or another one
		return "its own network namespace is gone: `allocnet teardown ID` removes what is left on the host; " +
			"then `allocnet setup` with the same arguments sets it up in the namespace that is at the path"
	}
	return "`allocnet repair` puts back what another program removed from the host; `allocnet setup` with the same arguments as before sets it up again"
}

// usageHint shows how the command is used, where that was the mistake.
func usageHint(err error) string {
	var usage usageError
	if !errors.As(err, &usage) || usage.command == nil {
		return "`allocnet --help` and `allocnet COMMAND --help` tell more"
	}
	return fmt.Sprintf("usage: %s; `%s --help` tells more", usage.command.UseLine(), usage.command.CommandPath())
}

func isUsage(err error) bool { return exitCode(err) == exitUsage }

// privateHostHint looks for what forbids an ordinary user namespaces of its own.
func privateHostHint() string {
	const instead = "; or run the demo as root"
	for _, s := range []struct{ file, forbids, set string }{
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0"},
		{"/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=10000"},
	} {
		if value, err := os.ReadFile(s.file); err == nil && strings.TrimSpace(string(value)) == s.forbids {
			return "user namespaces are forbidden here; as root: sysctl -w " + s.set + instead
		}
	}
	if os.Geteuid() == 0 {
		return "root may not make namespaces here; in a container, start it with --privileged (or --cap-add SYS_ADMIN,NET_ADMIN)"
	}
	return "user namespaces seem to be forbidden here (in a container, start it with --privileged)" + instead
}
