package accept

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

const (
	table  = "filter"
	mangle = "mangle"
	// wait is how long a program waits for another one's lock.
	wait = "--wait=30"
	// attempts are how often others may spoil a repair.
	attempts = 8
)

// program is iptables of one family.
type program struct {
	path   string
	family Family
	legacy bool
}

// find finds the family's program; exec.ErrNotFound says that it is not installed.
func (f *family) find(ctx context.Context) (*program, error) {
	path, err := exec.LookPath(f.program)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", f.program, err)
	}
	version, err := run(ctx, "", path, "--version")
	if err != nil {
		return nil, err
	}
	return &program{path: path, family: f.Family, legacy: !strings.Contains(version, "nf_tables")}, nil
}

// mend repairs until nothing is left to repair, and returns a watch over that;
// nil if there is none.
func (p *program) mend(ctx context.Context, admins []string, begin func() watch) (watch, error) {
	var err error
	for range attempts {
		w := begin()
		now, listErr := p.list(ctx, admins)
		if listErr != nil {
			return nil, listErr
		}
		lines, unmarkLines := now.repair(admins), now.repairUnmark()
		if len(lines)+len(unmarkLines) == 0 {
			if w == nil || !w.covers(now) {
				return nil, nil
			}
			return w, nil
		}
		err = p.restore(ctx, unmarkLines, lines)
		if ctx.Err() != nil {
			return nil, errors.Join(ctx.Err(), err)
		}
	}
	if err == nil {
		err = errors.New("another program changes the rules all the time")
	}
	return nil, err
}

// list reads what the opening consists of, and which of the chains exist.
func (p *program) list(ctx context.Context, chains []string) (*listing, error) {
	l := &listing{exists: map[string]bool{}}
	output, err := p.run(ctx, "-S", forward)
	if err != nil {
		return nil, err
	}
	if l.forward, err = rulesOf(output); err != nil {
		return nil, err
	}
	output, l.exists[Chain], err = p.find(ctx, "-S", Chain)
	if err != nil {
		return nil, err
	}
	if l.chain, err = rulesOf(output); err != nil {
		return nil, err
	}
	if l.mustUnmark = p.legacy; l.mustUnmark {
		if l.unmarks, err = p.countUnmarks(ctx); err != nil {
			return nil, err
		}
	}
	for _, chain := range chains {
		if _, l.exists[chain], err = p.find(ctx, "-S", chain, "1"); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (p *program) countUnmarks(ctx context.Context) (int, error) {
	output, err := run(ctx, "", p.path, wait, "-t", mangle, "-S", forward)
	if err != nil {
		return 0, err
	}
	rules, err := rulesOf(output)
	return count(rules, unmark), err
}

// find runs the program on a chain that may not be there, which it says with
// status 1.
func (p *program) find(ctx context.Context, args ...string) (output string, found bool, err error) {
	output, err = p.run(ctx, args...)
	var status *exec.ExitError
	if errors.As(err, &status) && status.ExitCode() == 1 {
		return "", false, nil
	}
	return output, err == nil, err
}

// restore applies lines of the tables mangle and filter, each in one transaction.
func (p *program) restore(ctx context.Context, mangleLines, filterLines []string) error {
	input := ""
	for _, t := range []struct {
		name  string
		lines []string
	}{{mangle, mangleLines}, {table, filterLines}} {
		if len(t.lines) > 0 {
			input += "*" + t.name + "\n" + strings.Join(t.lines, "\n") + "\nCOMMIT\n"
		}
	}
	_, err := run(ctx, input, p.path+"-restore", "--noflush", wait)
	return err
}

func (p *program) run(ctx context.Context, args ...string) (string, error) {
	return run(ctx, "", p.path, append([]string{wait, "-t", table}, args...)...)
}

// run runs a program to its end, or to the context's.
func run(ctx context.Context, input, path string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if ctxErr := ctx.Err(); err != nil && ctxErr != nil {
		err = errors.Join(ctxErr, err)
	}
	if err != nil {
		text := strings.TrimSpace(stderr.String())
		return "", fmt.Errorf("run %s: %w: %s%s", cmd, err, text, advice(text))
	}
	return stdout.String(), nil
}

// advices say what to do about what the programs complain of.
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

func advice(complaints string) string {
	for _, a := range advices {
		if strings.Contains(complaints, a.complaint) {
			return " (" + a.advice + ")"
		}
	}
	return ""
}
