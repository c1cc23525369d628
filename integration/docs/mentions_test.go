package docs

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	mention = regexp.MustCompile("`(allocnetd?(?: [^`]*)?)`")
	word    = regexp.MustCompile(`^[a-z]+$`)
	flag    = regexp.MustCompile(`--[a-z-]+`)
)

// TestMentions checks that commands in inline code exist, with their flags.
func TestMentions(t *testing.T) {
	bin, err := documented()
	require.NoError(t, err)
	helps := map[string]string{}
	total := 0
	for _, name := range documents(t) {
		d := read(t, name)
		for _, n := range d.prose {
			for _, found := range mention.FindAllStringSubmatch(d.lines[n-1], -1) {
				command := found[1]
				help := helpOf(t, helps, bin, command)
				require.NotEmpty(t, help, "%s:%d: %s: no such command", name, n, command)
				for _, f := range flag.FindAllString(command, -1) {
					require.Regexp(t, regexp.QuoteMeta(f)+`\b`, help, "%s:%d: %s: no such flag", name, n, command)
				}
				total++
			}
		}
	}
	require.Greater(t, total, 20, "commands were found")
}

// helpOf returns the help of the command at the beginning of a line, or "".
func helpOf(t *testing.T, helps map[string]string, bin, line string) string {
	t.Helper()
	parts := strings.Fields(line)
	args := parts[:1]
	for _, p := range parts[1:] {
		if !word.MatchString(p) || len(args) > 2 {
			break
		}
		args = append(args, p)
	}
	key := strings.Join(args, " ")
	if help, ok := helps[key]; ok {
		return help
	}
	out, err := exec.Command(filepath.Join(bin, args[0]), append(args[1:], "--help")...).CombinedOutput()
	if err == nil {
		helps[key] = string(out)
	}
	return helps[key]
}
