package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/demo"
	"github.com/allocnet/allocnet/cmd/internal/netpolicy"
	"github.com/allocnet/allocnet/cmd/internal/pluginfiles"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/portmap"
)

// errorKind is the kind of an error, for scripts. The words never change.
type errorKind struct {
	word    string
	meaning string // for the help
	exit    int
	applies func(error) bool
}

// kinds are in order: the first one that applies is the kind of an error. A wrapping error
// that describes the state of the host comes before its cause.
var kinds = []errorKind{
	{"output", "standard output could not be written", exitFailure, is(term.ErrOutput)},
	{"no-daemon", "no daemon listens", exitFailure, is(client.ErrUnavailable)},
	{"not-allowed", "the daemon does not serve this user", exitFailure, is(client.ErrForbidden)},
	{"busy", "the daemon has too many concurrent requests", exitFailure, is(client.ErrBusy)},
	{"not-ready", "setup cannot be expected to work", exitNo, is(errNotReady)},
	{"incomplete", "something may be left on the host; the record is kept", exitFailure, is(configurator.ErrIncomplete)},
	{"not-checked", "the health could not be determined", exitFailure, is(configurator.ErrNotChecked)},
	{"unhealthy", "the network is not as it was set up", exitNo, is(configurator.ErrUnhealthy)},
	{"findings", "doctor found something to repair", exitNo, is(errFindings)},
	{"leftovers", "the audit found leftovers", exitNo, is(errLeftovers)},
	{"unreachable", "trace: a path ends before the process of the allocation", exitNo, is(errEnds)},
	{"unpublished", "trace: the allocation has no host port of that address family", exitNo, is(errUnpublished)},
	{"not-found", "nothing is set up under this ID", exitNo, is(configurator.ErrNotFound)},
	{"in-use", "the network namespace belongs to another allocation or to the host", exitUsage, is(configurator.ErrInUse)},
	{"set-up", "the allocation is set up and would have to be torn down", exitFailure, either(is(configurator.ErrSetUp), is(errAttached))},
	{"revision", "the allocation has another revision than --revision", exitFailure, is(configurator.ErrRevision)},
	{"cannot-update", "the allocation cannot be changed while it runs", exitFailure, is(configurator.ErrCannotUpdate)},
	{"already-exists", "setup --new: the allocation exists already", exitFailure, is(configurator.ErrExists)},
	{"different", "another allocation is set up under this ID", exitFailure, is(configurator.ErrDifferent)},
	{"port-conflict", "a host port is already in use", exitUsage, both(isConflict, is(configurator.ErrInvalidAllocation))},
	{"port-conflict", "a host port is already in use", exitFailure, either(isConflict, either(is(ruleset.ErrPortTaken), is(configurator.ErrListener)))},
	{"limit", "a limit of the host is reached", exitFailure, noDescriptor},
	{"invalid", "the command line, a value in it or the configuration is invalid", exitUsage, isInvalid},
	{"undecided", "policy explain: the other end decides, and its address does not name it", exitFailure, is(netpolicy.ErrUndecided)},
	{"unknown-network", "no valid configuration has the name", exitFailure, is(configurator.ErrUnknownNetwork)},
	{"unserved", "no plugin of the networks serves what was requested", exitUsage, is(configurator.ErrUnserved)},
	{"foreign-file", "a file of another program has the name of a link", exitFailure, is(pluginfiles.ErrForeign)},
	{"plugin-not-installed", "a plugin was not found", exitFailure, is(configurator.ErrPluginNotInstalled)},
	{"exhausted", "a network has no free address", exitFailure, is(allocnet.ErrExhausted)},
	{"address-unavailable", "a requested address is in use, or not one of the network's", exitFailure, is(allocnet.ErrAddressUnavailable)},
	{"no-port", "no host port is free for a port without a number", exitFailure, is(allocnet.ErrNoPort)},
	{"subnet-taken", "the host has something in the subnet of a network that it would lose", exitFailure, is(allocnet.ErrSubnetTaken)},
	{"bridge-full", "a bridge has no free port", exitFailure, is(allocnet.ErrBridgeFull)},
	{"limit", "a limit of the host is reached", exitFailure, is(allocnet.ErrLimit)},
	{"unreadable-record", "the record of an allocation cannot be read", exitFailure, as[*allocnet.RecordError]},
	{"state-dir", "the state directory cannot be used", exitFailure, is(allocnet.ErrStateDir)},
	{"canceled", "the command was interrupted", exitFailure, is(context.Canceled)},
	{"timeout", "the time limit was exceeded", exitFailure, is(context.DeadlineExceeded)},
	{"no-answer", "the daemon ended, or stopped answering; the result is not known", exitFailure, is(client.ErrNoAnswer)},
	{"not-permitted", "the command needs more privileges", exitFailure, either(is(fs.ErrPermission), is(demo.ErrNoPrivateHost))},
	{"plugin", "a plugin returned an error (its code is in \"code\") or an invalid result", exitFailure, isPluginError},
	{"internal", "any other error", exitFailure, func(error) bool { return true }},
}

func kindOf(err error) errorKind {
	for _, k := range kinds {
		if k.applies(err) {
			return k
		}
	}
	panic("the last kind applies to every error")
}

// kindsHelp returns the help on the words, each of them once.
func kindsHelp() string {
	var b strings.Builder
	var said []string
	for _, k := range kinds {
		if !slices.Contains(said, k.word) {
			fmt.Fprintf(&b, "  %-20s  %s\n", k.word, k.meaning)
		}
		said = append(said, k.word)
	}
	return strings.TrimRight(b.String(), "\n")
}

func is(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

func as[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}

func either(a, b func(error) bool) func(error) bool {
	return func(err error) bool { return a(err) || b(err) }
}

func both(a, b func(error) bool) func(error) bool {
	return func(err error) bool { return a(err) && b(err) }
}

func isConflict(err error) bool { return errors.Is(err, portmap.ErrConflict) }

func isInvalid(err error) bool {
	return as[usageError](err) || as[*portmap.PortError](err) || errors.Is(err, pluginfiles.ErrProgram) ||
		errors.Is(err, configurator.ErrInvalidConfig) || errors.Is(err, configurator.ErrInvalidAllocation)
}

func isPluginError(err error) bool {
	return as[*types.Error](err) || errors.Is(err, configurator.ErrInvalidResult) || errors.Is(err, configurator.ErrNoAddress)
}
