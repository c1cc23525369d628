package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Family is an address family. Each family has its own iptables.
type Family uint8

// The families, with the kernel's numbers.
const (
	IPv4 Family = unix.AF_INET
	IPv6 Family = unix.AF_INET6
)

// Program returns the name of the family's iptables.
func (f Family) Program() string {
	if f == IPv6 {
		return "ip6tables"
	}
	return "iptables"
}

const (
	filterTable = "filter"
	mangleTable = "mangle"
	// forwardChain is a built-in chain of both tables.
	forwardChain = "FORWARD"
)

const (
	// lockTime is how long, in seconds, iptables waits for a lock that another
	// iptables holds.
	lockTime = 30
	// pipeTime is how long run waits for the pipes of a killed program to be
	// closed.
	pipeTime = time.Second
)

var waitOption = fmt.Sprintf("--wait=%d", lockTime)

// program identifies an installed program. It compares unequal to another version or
// variant under the same name.
type program struct {
	path, target   string // target is the path without symbolic links
	size, modified int64
}

// installed finds a program in PATH. errors.Is finds exec.ErrNotFound.
func installed(name string) (program, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return program{}, fmt.Errorf("find %s: %w", name, err)
	}
	target, err := filepath.EvalSymlinks(path)
	var info fs.FileInfo
	if err == nil {
		info, err = os.Stat(target)
	}
	if err != nil {
		return program{}, fmt.Errorf("look at %s: %w", name, err)
	}
	return program{path: path, target: target, size: info.Size(), modified: info.ModTime().UnixNano()}, nil
}

// isLegacy reports whether the program is the legacy variant of iptables.
func (p program) isLegacy(ctx context.Context) (bool, error) {
	version, err := once(&programs.versions, p, func() (string, error) {
		return runIPTables(ctx, "", p.path, "--version")
	})
	return !strings.Contains(version, "nf_tables"), err
}

// run runs a program until it exits or the context ends. It returns the standard output
// or, with an error, the standard error as complaint.
func run(ctx context.Context, input, path string, args ...string) (output, complaint string, err error) {
	cmd := exec.CommandContext(ctx, path, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = strings.NewReader(input), &stdout, &stderr, pipeTime
	if err := cmd.Run(); err != nil {
		complaint = strings.TrimSpace(stderr.String())
		if ended := ctx.Err(); ended != nil {
			err = errors.Join(ended, err)
		}
		return "", complaint, fmt.Errorf("run %s: %w: %s", cmd, err, complaint)
	}
	return stdout.String(), "", nil
}

// runIPTables is like run for iptables. The error also contains advice if the complaint
// is a known one.
func runIPTables(ctx context.Context, input, path string, args ...string) (string, error) {
	output, complaint, err := run(ctx, input, path, args...)
	if err == nil {
		return output, nil
	}
	return "", advised(err, complaint)
}

// advised adds advice to an error of iptables if its complaint is a known one.
func advised(err error, complaint string) error {
	for _, a := range advices {
		if strings.Contains(complaint, a.complaint) {
			return fmt.Errorf("%w (%s)", err, a.advice)
		}
	}
	return err
}

// advices contains advice for error messages of iptables.
var advices = []struct{ complaint, advice string }{
	{"Permission denied", "it needs CAP_NET_ADMIN in the host's network namespace"},
	{"incompatible", "its filter table holds rules that were not made with iptables: move them to a table of their own (nft -a list table ip filter, or ip6)"},
	{"xtables lock", "another program holds the lock of iptables"},
	{"do you need to insmod", missingModules},
	{"can't initialize", missingModules},
	{"Could not fetch rule set generation id", missingModules},
	{"Extension", missingModules},
	{"No such file or directory", missingModules},
	{"Protocol not supported", missingModules},
}

const missingModules = "the kernel lacks what it needs: load nf_tables and nft_compat, or ip_tables, iptable_filter and xt_mark (for IPv6 ip6_tables, ip6table_filter), or remove the program"
