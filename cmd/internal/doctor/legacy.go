package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/allocnet/allocnet/internal/iptables"
)

// legacyTables returns the tables that the legacy iptables has in the kernel.
func legacyTables(f iptables.Family) ([]string, error) {
	file := map[iptables.Family]string{iptables.IPv4: "/proc/net/ip_tables_names", iptables.IPv6: "/proc/net/ip6_tables_names"}[f]
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(data)), err
}

func legacyProgram(f iptables.Family) string {
	if f == iptables.IPv6 {
		return "ip6tables-legacy"
	}
	return "iptables-legacy"
}

// legacyRules returns the listing of a table of the legacy iptables; none if the table, or
// the program, does not exist.
func legacyRules(ctx context.Context, f iptables.Family, table string) ([]string, error) {
	tables, err := legacyTables(f)
	if err != nil || !slices.Contains(tables, table) {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, legacyProgram(f), "-w", "5", "-t", table, "-S").Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("list legacy iptables: %w: on Debian: apt-get install iptables", err)
	}
	if err != nil {
		return nil, fmt.Errorf("list legacy iptables: %w", err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), nil
}

// What the chain FORWARD of the legacy iptables does with packets of allocations if its policy is to drop.
const (
	forwardDrops   = "drops"
	forwardAccepts = "accepts" // by allocnet's rule, or perhaps by another one
)

// legacyForward returns one of these, or "" if the policy is not to drop.
func legacyForward(ctx context.Context, f iptables.Family) (string, error) {
	rules, err := legacyRules(ctx, f, "filter")
	switch {
	case !slices.Contains(rules, "-P FORWARD DROP"):
		return "", err
	case slices.ContainsFunc(rules, func(r string) bool {
		return strings.HasPrefix(r, "-A FORWARD ") && (strings.HasSuffix(r, "-j "+iptables.AcceptChain) || strings.HasSuffix(r, "-j ACCEPT"))
	}):
		return forwardAccepts, err
	}
	return forwardDrops, err
}

// mixedIPTables reports tables of the legacy iptables beside those of iptables on nf_tables.
func mixedIPTables(ctx context.Context, chains []baseChain) (findings []Finding, err error) {
	for f, family := range map[iptables.Family]nftables.TableFamily{iptables.IPv4: nftables.TableFamilyIPv4, iptables.IPv6: nftables.TableFamilyIPv6} {
		tables, reset, tablesErr := usedLegacyTables(ctx, f)
		err = errors.Join(err, tablesErr)
		onNFT := slices.ContainsFunc(chains, func(c baseChain) bool {
			return c.ofIPTables() && c.Table.Family == family && slices.Contains(tables, c.Table.Name)
		})
		if onNFT {
			findings = append(findings, find("iptables-mixed", f.Program(), fmt.Sprintf("%s has tables of the legacy variant (%s) and of nf_tables", f.Program(), strings.Join(tables, ", ")),
				fmt.Sprintf("choose one: update-alternatives --config %s; then remove the rules of the other, for example: %s", f.Program(), strings.Join(reset, "; "))))
		}
	}
	return findings, err
}

// usedLegacyTables returns the tables of the legacy iptables that have rules, or policies to drop, and the
// commands that remove these. To list the rules of a table makes it, and it stays. Without the program that
// lists them, all tables count.
func usedLegacyTables(ctx context.Context, f iptables.Family) (used, reset []string, err error) {
	tables, err := legacyTables(f)
	for _, table := range tables {
		rules, rulesErr := legacyRules(ctx, f, table)
		program := legacyProgram(f) + " -t " + table
		var commands []string
		if errors.Is(rulesErr, exec.ErrNotFound) || slices.ContainsFunc(rules, func(r string) bool { return strings.HasPrefix(r, "-A ") }) {
			commands, rulesErr = append(commands, program+" -F"), nil
		}
		for _, r := range rules {
			if policy, drops := strings.CutSuffix(r, " DROP"); drops && strings.HasPrefix(policy, "-P ") {
				commands = append(commands, program+" "+policy+" ACCEPT")
			}
		}
		if len(commands) > 0 {
			used, reset = append(used, table), append(reset, commands...)
		}
		err = errors.Join(err, rulesErr)
	}
	return used, reset, err
}
