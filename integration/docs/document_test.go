package docs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// top is the directory of the module.
const top = "../.."

// document is a Markdown file and its blocks.
type document struct {
	name   string // path relative to top
	lines  []string
	prose  []int // numbers of the lines outside blocks, from 1
	blocks []block
}

// block is a fenced block.
type block struct {
	line     int // number of its first line of text, from 1
	language string
	lines    []string
	exit     int    // exit code of the last command
	file     string // file to which it is written
	notRun   string // reason
}

func (b *block) text() string { return strings.Join(b.lines, "\n") + "\n" }

// commands are the languages of blocks that are run.
var commands = []string{"console", "sh"}

// languages are the permitted languages of blocks.
var languages = append([]string{"go", "json", "hcl", "toml", "text", "mermaid", "yaml"}, commands...)

// documents returns the tested documents, relative to top.
func documents(t testing.TB) (names []string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(top, "docs", "*.md"))
	require.NoError(t, err)
	for i := range names {
		names[i] = filepath.Join("docs", filepath.Base(names[i]))
	}
	return append([]string{"README.md"}, names...)
}

// tracked returns all Markdown files of the source.
func tracked(t testing.TB) []string {
	t.Helper()
	out, err := exec.Command("git", "-c", "safe.directory=*", "-C", top, "ls-files", "*.md").Output()
	if err != nil { // outside a git checkout
		return append(documents(t), "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "integration/bench/README.md")
	}
	names := append(strings.Fields(string(out)), documents(t)...)
	slices.Sort(names)
	return slices.Compact(names)
}

var (
	fence   = regexp.MustCompile("^```(.*)$")
	comment = regexp.MustCompile(`^<!-- (exit|file|not run): (.*) -->$`)
)

// read parses a document. The test fails if its form is wrong.
func read(t testing.TB, name string) *document {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(top, name))
	require.NoError(t, err)
	d := &document{name: name, lines: strings.Split(strings.TrimRight(string(data), "\n"), "\n")}
	require.NoError(t, d.parse())
	return d
}

func (d *document) parse() error {
	inside := false
	for i, line := range d.lines {
		found := fence.FindStringSubmatch(line)
		switch {
		case found == nil && inside:
			last := &d.blocks[len(d.blocks)-1]
			last.lines = append(last.lines, line)
		case found == nil:
			d.prose = append(d.prose, i+1)
		case inside && found[1] != "":
			return fmt.Errorf("%s:%d: a block begins within a block", d.name, i+1)
		case inside:
			inside = false
		default:
			inside = true
			b := block{line: i + 2, language: found[1]}
			if i > 0 {
				if err := b.marked(d.lines[i-1]); err != nil {
					return fmt.Errorf("%s:%d: %w", d.name, i, err)
				}
			}
			d.blocks = append(d.blocks, b)
		}
	}
	if inside {
		return fmt.Errorf("%s: the last block has no end", d.name)
	}
	return nil
}

// marked parses the comment above a block.
func (b *block) marked(line string) error {
	found := comment.FindStringSubmatch(line)
	if found == nil {
		return nil
	}
	switch value := found[2]; found[1] {
	case "exit":
		_, err := fmt.Sscan(value, &b.exit)
		return err
	case "file":
		b.file = value
	default:
		b.notRun = value
	}
	return nil
}

// runs reports whether a block is run.
func (b *block) runs() bool {
	return slices.Contains(commands, b.language) && b.file == "" && b.notRun == ""
}

// TestForm checks that blocks name a known language, that lines are not too
// long, and that the README is short.
func TestForm(t *testing.T) {
	for _, name := range documents(t) {
		d := read(t, name)
		for _, b := range d.blocks {
			require.Contains(t, languages, b.language, "%s:%d: language of a block", name, b.line-1)
			if b.notRun != "" {
				require.Contains(t, commands, b.language, "%s:%d: such a block is never run", name, b.line-1)
			}
		}
		for _, n := range d.prose {
			line := d.lines[n-1]
			if name != "docs/design.md" && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "<") && !strings.Contains(line, "](") {
				assert.LessOrEqual(t, len([]rune(line)), 100, "%s:%d: length", name, n)
			}
			if name != "docs/design.md" {
				assert.Zero(t, strings.Count(line, "`")%2, "%s:%d: inline code is on one line, for TestMentions", name, n)
			}
			indented := strings.HasPrefix(line, "    ") && n > 1 && d.lines[n-2] == ""
			require.False(t, indented, "%s:%d: a block needs a fence and a language", name, n)
		}
		if name == "README.md" {
			require.LessOrEqual(t, len(d.lines), 120, "lines of the README")
		}
	}
}

// TestParse checks that invalid documents are errors.
func TestParse(t *testing.T) {
	for name, text := range map[string]string{
		"no end": "```sh\ntrue", "within": "```sh\n```console\n```", "exit": "<!-- exit: x -->\n```sh\n```",
	} {
		d := &document{name: name, lines: strings.Split(text, "\n")}
		require.Error(t, d.parse(), name)
	}
	d := &document{lines: strings.Split("text\n<!-- not run: why -->\n```sh\ntrue\n```\n<!-- file: /x -->\n```json\n{}\n```\n<!-- exit: 3 -->\n```console\n$ false\n```", "\n")}
	require.NoError(t, d.parse())
	require.Equal(t, []block{
		{line: 4, language: "sh", lines: []string{"true"}, notRun: "why"},
		{line: 8, language: "json", lines: []string{"{}"}, file: "/x"},
		{line: 12, language: "console", lines: []string{"$ false"}, exit: 3},
	}, d.blocks)
	var out bytes.Buffer
	for _, b := range d.blocks {
		fmt.Fprint(&out, b.runs(), " ")
	}
	require.Equal(t, "false false true ", out.String())
}
