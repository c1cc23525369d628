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
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/demo"
	"github.com/allocnet/allocnet/cmd/internal/netpolicy"
	"github.com/allocnet/allocnet/cmd/internal/pluginfiles"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/object"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/lease"
	"github.com/allocnet/allocnet/portmap"
)

// hint returns the next step after an error, or "" if the error contains it. It does not
// suggest flags that were used or have no effect; used has them as "--flag".
func hint(err error, used ...string) string {
	return choice.ReplaceAllStringFunc(fullHint(err), func(text string) string {
		parts := choice.FindStringSubmatch(text)
		if slices.Contains(used, parts[1]) {
			return parts[3]
		}
		return parts[2]
	})
}

// choice matches a part of a hint that depends on a flag: [--flag|text], or
// [--flag|text|text if the flag was used].
var choice = regexp.MustCompile(`\[(--[a-z-]+)\|([^|\]]*)\|?([^|\]]*)\]`)

// fullHint returns a hint with all its choices.
func fullHint(err error) string {
	var failed *failedDemo
	if errors.As(err, &failed) {
		err = failed.cause
		if errors.Is(err, context.Canceled) {
			return "" // the demo cleans up itself
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

// usedFlags returns the flags of a command line, as "--flag", and the global flags that have no
// meaning for the command. Hints suggest neither.
func (a *app) usedFlags(c *cobra.Command) (used []string) {
	if c != nil {
		c.Flags().Visit(func(f *pflag.Flag) { used = append(used, "--"+f.Name) })
		used = append(used, a.flags.meaningless(c)...)
	}
	return used
}

// givenID returns the ID on the command line of a command for one allocation, its first argument.
func givenID(c *cobra.Command) string {
	if c == nil || !strings.HasSuffix(strings.Fields(c.Use + " -")[1], "ID") || c.Flags().NArg() == 0 {
		return ""
	}
	return c.Flags().Arg(0)
}

// hintFor returns the hint with the allocation's ID in its commands: the ID in the error, or
// else the given one.
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

// idInCommand matches the placeholder of an ID in a command of a hint.
var idInCommand = regexp.MustCompile("(`allocnet [a-z -]+ )ID([ `])")

// hints are tried in order, the hints closest to the cause first. The first one that
// applies is used, but all that name a program to install are combined.
var hints = []struct {
	applies func(error) bool
	text    func(error) string
	install bool
}{
	{applies: is(context.Canceled), text: say("the command was interrupted; its changes were rolled back or are recorded: see `allocnet ls`")},
	{applies: as[stepError], text: nextStep},
	{applies: as[*pluginfiles.Error], text: linksStep},
	{applies: is(client.ErrUnavailable), text: say("start it (systemctl start allocnetd)[--socket|, name its socket (--socket)], or use no daemon (--no-daemon)")},
	{applies: is(client.ErrNoAnswer), text: say("look at the daemon (systemctl status allocnetd, journalctl -u allocnetd); " +
		"if it hangs, restart it; then repeat the command: `allocnet ls` and `allocnet history` show what it has done")},
	{applies: is(client.ErrConflists), text: say(
		"name a network of the daemon instead, or ask root to set allow_conflists in the settings of the daemon")},
	{applies: is(client.ErrForbidden), text: say("the daemon serves root and the group of its socket: try again with sudo, or join the group")},
	{applies: is(client.ErrBusy), text: say("try again in a moment")},
	{applies: is(demo.ErrNoPrivateHost), text: func(error) string { return privateHostHint() }},
	{applies: is(configurator.ErrPluginNotInstalled), install: true, text: say(
		"install the plugins, on Debian: apt-get install containernetworking-plugins (into /usr/lib/cni), or, " +
			"in the source of allocnet: make plugins (into bin/cni)[--plugin-dir|, or name their directory (--plugin-dir)|, or name another directory of plugins]")},
	{applies: iptablesMissing, install: true, text: say("plugins need iptables, on Debian: apt-get install iptables")},
	{applies: is(configurator.ErrUnprivileged), text: say("run allocnet with sudo, or the daemon with the capabilities of its systemd unit; only `allocnet demo` works without")},
	{applies: notPermitted, text: notPermittedHint},
	{applies: noDescriptor, text: say("this process, or the host, has too many open files: raise the limit (ulimit -n), or fs.file-max")},
	{applies: as[*allocnet.RecordError], text: recordHint},
	{applies: both(is(allocnet.ErrStateDir), saying(nil, "no space left on device", "disk quota exceeded")), text: say(
		"free some space on the file system of that file (`df` shows it); a teardown needs none")},
	{applies: both(is(allocnet.ErrStateDir), saying(nil, "read-only file system")), text: say(
		"make that file system writable (mount -o remount,rw)[--state-dir|, or choose another directory (--state-dir)]")},
	{applies: saying(rtnl.ErrForeignRoute), text: say(causeHint)},
	{applies: saying(object.ErrSmallMTU), text: say(causeHint)},
	{applies: keepsOldAddress, text: bridgeHint},
	{applies: both(is(errBroken), is(configurator.ErrUnhealthy)), text: say(
		"repeat `allocnet setup` of a broken allocation with the same arguments; if its network namespace is gone, " +
			"or setup leaves it as it is, run `allocnet teardown ID` first")},
	{applies: is(configurator.ErrSubnetTaken), text: say("`allocnet doctor` shows every overlap of the networks with the host")},
	{applies: saying(rtnl.ErrBridgeFull, "exchange full"), text: say(
		"`allocnet ls` lists the allocations on the bridge: remove some with `allocnet teardown ID` or `allocnet gc`; or use another network[--network| (--network)]")},
	{applies: is(configurator.ErrInvalidResult), text: say("a plugin of the network does not work as CNI requires: update or replace it; `allocnet networks` lists the plugins")},
	{applies: saying(lease.ErrExhausted), text: say(
		"`allocnet ls` lists the allocations with addresses: tear some of them down, remove lost ones with `allocnet gc`, " +
			"configure a larger subnet, or use another network[--network| (--network)]")},
	{applies: saying(lease.ErrNotInRange, "is not in range set"), text: say("request an address of the network's subnet, other than its gateway, or none")},
	{applies: saying(nil, "requested IP address"), text: say("`allocnet ls` shows which allocation has the address; request another address or none")},
	{applies: saying(lease.ErrDuplicate), text: say(
		"an earlier allocation with this ID left its address[--force|: `allocnet cleanup --force ID` releases it]")},
	{applies: saying(ruleset.ErrPortTaken), text: portTakenHint},
	{applies: is(configurator.ErrListener), text: say("`ss -lntup` lists the processes that listen; the setting host_listeners of the daemon selects the action")},
	{applies: is(configurator.ErrNoPort), text: say("remove allocations, or enlarge the setting dynamic_ports of the daemon")},
	{applies: both(is(configurator.ErrInUse), saying(nil, "attach allocation ")), text: say(
		"name another interface with --interface, or omit the flag; `allocnet inspect ID` lists the interfaces")},
	{applies: is(configurator.ErrInUse), text: say(
		"every allocation needs its own network namespace: [--netns|use --netns with another path|use another path]" +
			"[--create|, or --create once this one is gone]; `allocnet ls` lists the allocations")},
	{applies: is(configurator.ErrRevision), text: say("`allocnet inspect ID` shows what the allocation has now[--json|; with --json also its revision]")},
	{applies: both(is(configurator.ErrCannotUpdate), saying(nil, "detach ")), text: say("`allocnet inspect ID` lists the networks and the host ports")},
	{applies: is(configurator.ErrCannotUpdate), text: say("tear the allocation down, and set it up with the other ports or limits; allocnet's plugins, native and without the key \"backend\" or limits of their own, permit it while it runs")},
	{applies: is(configurator.ErrSetUp), text: say("remove it with `allocnet teardown ID`; use force only if that fails")},
	{applies: is(configurator.ErrNotChecked), text: say(
		"the network is unchanged: repair the cause that stops the plugin (if it hangs, a longer timeout[--timeout| (--timeout)]), and try again")},
	{applies: is(configurator.ErrUnknownNetwork), text: say(
		"`allocnet networks` lists the networks and the files that were skipped; allocnet, the embedded one, needs no file[--network|: --network allocnet]")},
	{applies: is(configurator.ErrUnserved), text: unservedHint},
	{applies: saying(conflist.ErrPolicyOfBinaries), text: say("use --engine auto; or, if new allocations need no policy, " +
		`set policy = ["none"] in the settings of the daemon and run ` + "`allocnetd reload`")},
	{applies: is(configurator.ErrExists), text: say("`allocnet inspect ID` shows the existing allocation; a setup that may find one accepts it")},
	{applies: is(configurator.ErrDifferent), text: say("`allocnet inspect ID` shows the existing allocation; `allocnet set` changes its policy, labels and bandwidth, " +
		"`allocnet publish` and `unpublish` its host ports, and `allocnet teardown ID` removes it")},
	{applies: isConflict, text: conflictHint},
	{applies: saying(nil, "parse policy: ", "check policy: "), text: say("correct the policy at the place that the error names; `allocnet policy check FILE` checks it and changes nothing")},
	{applies: saying(nil, "the key must be at most"), text: say("write the label as KEY=VALUE, as in tier=front, and KEY- for one to remove")},
	{applies: saying(nil, "is reserved for labels of namespaces"), text: say(
		"choose another key[--allow-reserved-labels|; --allow-reserved-labels permits the labels of a namespace, which `allocnet policy translate --json` prints]")},
	{applies: saying(nil, "the allocation is attached to it already"), text: say(
		"there is nothing to do: `allocnet inspect ID` shows the network and its interface")},
	{applies: is(configurator.ErrUnhealthy), text: unhealthyHint},
	{applies: is(errLeftovers), text: say("`allocnet cleanup --force` with the same IDs removes them")},
	{applies: netnsMissing, text: say("create it first (ip netns add NAME)[--create|, or let setup --create do it]")},
	{applies: is(errUnpublished), text: say("`allocnet publish ID PORT` publishes a port; `allocnet policy explain` is about connections without host ports")},
	{applies: is(netpolicy.ErrUndecided), text: say("name the other end by its ID, or by another of its addresses")},
	{applies: is(configurator.ErrNotFound), text: say("`allocnet ls` lists the allocations[--state-dir|; --state-dir selects the directory of their records]")},
	{applies: is(configurator.ErrIncomplete), text: say("repeat `allocnet teardown ID`[--force|, or remove it without plugins: `allocnet cleanup --force ID`]")},
	{applies: is(context.DeadlineExceeded), text: say("a plugin hangs, or needs a longer timeout[--timeout| (--timeout)]")},
	{applies: isUsage, text: usageHint},
	{applies: is(term.ErrOutput), text: say("only the output is lost: the command's changes are done")},
}

// causeHint is the hint for what another program may have made on purpose, so that allocnet does not
// change it.
const causeHint = "run the command that the error names; then the daemon restores allocations at once (without a daemon: `allocnet repair`)"

func say(text string) func(error) string { return func(error) string { return text } }

func nextStep(err error) string {
	var e stepError
	errors.As(err, &e)
	return e.step
}

func linksStep(err error) string {
	var e *pluginfiles.Error
	errors.As(err, &e)
	return e.Step
}

// saying returns a test for an error or one of some texts, because errors of plugin
// binaries arrive as text.
func saying(target error, texts ...string) func(error) bool {
	if target != nil {
		texts = append(texts, target.Error())
	}
	return func(err error) bool {
		said := err.Error()
		return errors.Is(err, target) || slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(said, text) })
	}
}

// iptablesMissing also searches the text, because errors of plugins arrive as text.
func iptablesMissing(err error) bool {
	text := err.Error()
	return (errors.Is(err, exec.ErrNotFound) || strings.Contains(text, exec.ErrNotFound.Error())) &&
		(strings.Contains(text, "iptables") || strings.Contains(text, "ip6tables"))
}

// noDescriptor reports whether a limit of open files of this process or of the host is reached.
func noDescriptor(err error) bool {
	return !client.Remote(err) && (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE))
}

func notPermitted(err error) bool {
	if client.Remote(err) { // sudo would not help the daemon
		return false
	}
	text := strings.ToLower(err.Error())
	return errors.Is(err, fs.ErrPermission) ||
		strings.Contains(text, "operation not permitted") || strings.Contains(text, "permission denied")
}

func notPermittedHint(error) string {
	if os.Geteuid() == 0 {
		return "this user is root, so a capability is missing (CAP_NET_ADMIN, CAP_SYS_ADMIN) or the host forbids the change: run `allocnet doctor`"
	}
	return "this needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN): try again with sudo; only `allocnet demo` works without"
}

func unservedHint(err error) string {
	const networks = "`allocnet networks` lists what each network serves[--network|, --network selects another one]; "
	var e *configurator.UnservedError
	if errors.As(err, &e) && slices.Contains(e.Capabilities, "policy") {
		return networks + "with the engine auto or native, the network allocnet enforces policies, " +
			`and so do others whose plugins end with {"type": "policy", "capabilities": {"policy": true}}`
	}
	return networks + "to set up without it: [--allow-unserved|--allow-unserved, or ]allow_unserved in the settings of the daemon"
}

func conflictHint(err error) string {
	var e *portmap.ConflictError
	if errors.As(err, &e) && e.OtherID != "" && e.OtherID != e.ID {
		return fmt.Sprintf("choose another host port, or free it: `allocnet unpublish %[1]s PORT` or `allocnet teardown %[1]s`", e.OtherID)
	}
	return "publish every host port only once"
}

// portTakenHint returns the hint for a port whose owner has no record. For an owner with a
// record conflictHint applies.
func portTakenHint(err error) string {
	const another = "choose another host port"
	var e *allocnet.PortTakenError
	if !errors.As(err, &e) || e.ID == "" || names.IsHash(e.ID) {
		return another + "; `allocnet ls` lists the ports of all allocations"
	}
	return fmt.Sprintf("%s, or free it: `allocnet teardown %s`[--force|, or, if it has no record, `allocnet cleanup --force %[2]s`]", another, e.ID)
}

func netnsMissing(err error) bool {
	return errors.Is(err, configurator.ErrInvalidAllocation) && errors.Is(err, fs.ErrNotExist)
}

// recordHint returns the hint for an allocation whose record cannot be read.
func recordHint(err error) string {
	var e *allocnet.RecordError
	errors.As(err, &e)
	if errors.Is(e, allocnet.ErrNewer) {
		return fmt.Sprintf("use the newer allocnet that wrote %s", e.File)
	}
	return fmt.Sprintf("if the owner or the mode of %[1]s is wrong, correct it (chown root, chmod go-w); if it is damaged, "+
		"`allocnet teardown %[2]s[--netns| --netns PATH`, with the path of its network namespace,|`] removes the allocation without it", e.File, e.ID)
}

// oldAddress matches the error of the reference and of the native bridge plugin for a
// bridge of another subnet.
var oldAddress = regexp.MustCompile(`"?([^\s"\\]+)\\?"? already has (?:an IP address different from|the address \S+, which is not the gateway)`)

func keepsOldAddress(err error) bool { return oldAddress.MatchString(err.Error()) }

func bridgeHint(err error) string {
	return fmt.Sprintf("a bridge keeps its first subnet: continue with that subnet[--subnet| (in the file of the network, or --subnet for the embedded one)], or, "+
		"once no allocation uses the bridge: ip link del %s", oldAddress.FindStringSubmatch(err.Error())[1])
}

// unhealthyHint distinguishes a broken network from an allocation whose network namespace
// is gone or was replaced, which neither repair nor setup accepts.
func unhealthyHint(err error) string {
	switch {
	case netnsMissing(err):
		return "its network namespace is gone: `allocnet teardown ID` removes what is left on the host"
	case errors.Is(err, configurator.ErrInvalidAllocation): // the path leads to another network namespace or to none
		return "its own network namespace is gone: `allocnet teardown ID` removes what is left on the host; " +
			"then `allocnet setup` with the same arguments sets it up in the namespace that is at the path"
	}
	return "`allocnet repair` restores what another program removed from the host; `allocnet setup` with the same arguments sets it up again " +
		"if an interface, an address or a rule is gone; otherwise `allocnet teardown ID` first"
}

// usageHint shows the usage of the command, if the error is in its command line.
func usageHint(err error) string {
	var usage usageError
	if !errors.As(err, &usage) || usage.command == nil {
		return "`allocnet help flags` and `allocnet COMMAND --help` explain the flags"
	}
	return fmt.Sprintf("usage: %s; `%s --help` explains the flags", usage.command.UseLine(), usage.command.CommandPath())
}

func isUsage(err error) bool { return exitCode(err) == exitUsage }

// privateHostHint finds the sysctl that forbids user namespaces.
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
		return "root may not create namespaces here; in a container, start it with --privileged (or --cap-add SYS_ADMIN,NET_ADMIN)"
	}
	return "user namespaces seem to be forbidden here (in a container, start it with --privileged)" + instead
}
