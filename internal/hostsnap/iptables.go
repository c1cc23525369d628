package hostsnap

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// ruleset is the output of iptables-save or ip6tables-save.
type ruleset struct {
	native bool            // iptables keeps its rules in nftables
	tables map[string]bool // names of the listed tables
	lines  []string        // "table rule"
}

// iptables collects the rules that iptables lists. tables are those of nftables. It returns the
// names of those that this covers, such as "ip nat".
func (c *collector) iptables(tables []*nftables.Table) (covered map[string]bool, err error) {
	covered = map[string]bool{}
	for family, program := range map[string]string{"ip": "iptables-save", "ip6": "ip6tables-save"} {
		if !hasTables(tables, family) {
			continue
		}
		output, err := save(program)
		if err != nil {
			return nil, err
		}
		rules := parseSaved(output)
		for _, text := range rules.lines {
			_, rule, _ := strings.Cut(text, " ")
			c.add(sharedRules.MatchString(rule), "iptables", family, text)
		}
		for table := range rules.tables {
			covered[family+" "+table] = rules.native
		}
	}
	return covered, nil
}

// hasTables reports whether the iptables of a family, "ip" or "ip6", has anything to list: a table
// in nftables, or one of the legacy variant. To start the program takes longer than to look.
func hasTables(tables []*nftables.Table, family string) bool {
	if slices.ContainsFunc(tables, func(t *nftables.Table) bool {
		return tableTitle(t) == family+" "+t.Name && slices.Contains(tableNames, t.Name)
	}) {
		return true
	}
	// The kernel has the file once the legacy variant's module is loaded.
	legacy, err := os.ReadFile("/proc/thread-self/net/" + family + "_tables_names")
	return err == nil && len(legacy) > 0
}

// tableNames are the tables that iptables can have.
var tableNames = []string{"filter", "nat", "mangle", "raw", "security"}

// save runs a save program. It returns no output if the program is not
// installed, because then no rules were made with it.
func save(program string) ([]byte, error) {
	path, err := exec.LookPath(program)
	if errors.Is(err, exec.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find program %q: %w", program, err)
	}
	cmd := exec.Command(path)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("run %q: %w: %s", program, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return output, nil
}

// counters matches the packet and byte counts at the end of a chain's line.
var counters = regexp.MustCompile(` \[\d+:\d+\]$`)

// parseSaved parses the output of a save program without the parts that differ
// between two runs.
func parseSaved(output []byte) ruleset {
	rules := ruleset{tables: map[string]bool{}}
	table := ""
	for text := range strings.Lines(string(output)) {
		text = strings.TrimSpace(text)
		switch {
		case strings.HasPrefix(text, "# Generated"):
			rules.native = strings.Contains(text, "nf_tables")
		case strings.HasPrefix(text, "# Table"), strings.HasPrefix(text, "# Warning"):
			rules.lines = append(rules.lines, text)
		case text == "" || text == "COMMIT" || text[0] == '#':
		case text[0] == '*':
			table = text[1:]
			rules.tables[table] = true
		default:
			rules.lines = append(rules.lines, table+" "+counters.ReplaceAllString(text, ""))
		}
	}
	return rules
}

// sharedRules matches the rules that stay in iptables after the first use of a
// network: chains without effect, and chains and rules of the reference plugins
// and allocnet that all attachments share.
var sharedRules = regexp.MustCompile(`^(?:` + strings.Join([]string{
	`:[A-Z]+ ACCEPT`,
	`:(?:` + sharedChains + `) -`,
	`-A (?:FORWARD|PREROUTING|OUTPUT|POSTROUTING) .*-j (?:` + sharedChains + `)`,
	`-A CNI-FORWARD .*-j (?:CNI|ALLOCNET)-ADMIN`,
	`-A ALLOCNET-FORWARD (?:-j \S+|-m mark --mark 0x1000/0x1000 -j ACCEPT)`,
	`-A FORWARD -m comment --comment allocnet -m mark --mark 0x1000/0x1000 -j MARK --set-xmark 0x0/0x1000`,
	`-A ALLOCNET-ADMIN -[do] \S+ -m conntrack --ctstate DNAT -j ACCEPT`,
	`-A CNI-(?:HOSTPORT-(?:SETMARK|MASQ)|ISOLATION-STAGE-[12]) .*`,
}, "|") + `)$`)

const sharedChains = `ALLOCNET-(?:ADMIN|FORWARD)|CNI-(?:FORWARD|ADMIN|HOSTPORT-(?:DNAT|SETMARK|MASQ)|ISOLATION-STAGE-[12])`
