// Package manpage writes the manual pages of a program from its commands, one
// for each command.
//
// The help of the programs is plain text with columns, so a page shows what
// has columns as it is, and fills the rest.
package manpage

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/allocnet/allocnet/internal/buildinfo"
)

// Options describe the pages of a program.
type Options struct {
	Section int      // 1 to 8
	Files   string   // text of the section FILES of the program's own page; empty: none
	SeeAlso []string // further pages, as "name(section)"
}

// NewCommand returns a hidden command that writes the pages of the program
// with this root into a directory, which it creates if necessary.
func NewCommand(root *cobra.Command, o Options) *cobra.Command {
	return &cobra.Command{
		Use:               "man DIR",
		Short:             "Write the manual pages into a directory",
		Hidden:            true,
		Args:              cobra.ExactArgs(1),
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil }, // needs no settings
		RunE:              func(_ *cobra.Command, args []string) error { return Write(root, o, args[0]) },
	}
}

// Write writes the pages of the program with this root into a directory. Their
// version and date are those of the build.
func Write(root *cobra.Command, o Options, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write manual pages: %w", err)
	}
	for _, c := range documented(root) {
		file := filepath.Join(dir, name(c)+"."+strconv.Itoa(o.Section))
		if err := os.WriteFile(file, page(c, o, buildinfo.Read()), 0o644); err != nil {
			return fmt.Errorf("write manual pages: %w", err)
		}
	}
	return nil
}

// documented returns the command and those below it that have a page. The
// completions of the shells are all on one page.
func documented(c *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{c}
	if c.Name() == "completion" {
		return all
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" {
			all = append(all, documented(sub)...)
		}
	}
	return all
}

// name returns the name of the page of a command: the path to it, with dashes.
func name(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// page returns the page of a command.
func page(c *cobra.Command, o Options, build *debug.BuildInfo) []byte {
	c.InitDefaultHelpFlag()
	var b bytes.Buffer
	version, date := versionAndDate(build)
	fmt.Fprintf(&b, ".TH %s %d \"%s\" \"%s\"\n", roff(strings.ToUpper(name(c))), o.Section, date, roff(c.Root().Name()+" "+version))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name(c)), roff(lowerFirst(c.Short)))
	fmt.Fprint(&b, ".SH SYNOPSIS\n")
	if c.Runnable() {
		fmt.Fprintf(&b, ".B %s\n", roff(c.UseLine()))
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(&b, ".br\n.B %s\n[command]\n", roff(c.CommandPath()))
	}
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	section(&b, "DESCRIPTION", text)
	for _, topic := range c.Commands() {
		if topic.IsAdditionalHelpTopicCommand() {
			section(&b, strings.ToUpper(topic.Short), topic.Long)
		}
	}
	commands(&b, c, o.Section)
	flags(&b, "OPTIONS", c.NonInheritedFlags())
	flags(&b, "GLOBAL OPTIONS", c.InheritedFlags())
	if no := c.Annotations["no"]; no != "" {
		section(&b, "EXIT STATUS", "    0  success\n    1  failure\n    2  the command line, a value in it or the configuration is invalid\n    3  "+no)
	}
	if c.Example != "" {
		section(&b, "EXAMPLES", c.Example)
	}
	if o.Files != "" && !c.HasParent() {
		section(&b, "FILES", o.Files)
	}
	also(&b, c, o)
	return b.Bytes()
}

// versionAndDate returns what the build says of itself. The date is empty for a
// build without a commit.
func versionAndDate(build *debug.BuildInfo) (version, date string) {
	if build == nil {
		return "", ""
	}
	for _, s := range build.Settings {
		if s.Key != "vcs.time" {
			continue
		}
		if at, err := time.Parse(time.RFC3339, s.Value); err == nil {
			date = at.UTC().Format(time.DateOnly)
		}
	}
	return build.Main.Version, date
}

// section writes a section. Paragraphs in which a line is indented keep their
// lines.
func section(b *bytes.Buffer, title, text string) {
	fmt.Fprintf(b, ".SH %s\n", title)
	for i, paragraph := range strings.Split(strings.Trim(text, "\n"), "\n\n") {
		if i > 0 {
			fmt.Fprint(b, ".PP\n")
		}
		if strings.HasPrefix(paragraph, " ") || strings.Contains(paragraph, "\n ") {
			fmt.Fprintf(b, ".nf\n%s\n.fi\n", roff(paragraph))
			continue
		}
		fmt.Fprintln(b, roff(paragraph))
	}
}

// commands writes the list of the commands below a command.
func commands(b *bytes.Buffer, c *cobra.Command, section int) {
	for i, sub := range documented(c)[1:] {
		if i == 0 {
			fmt.Fprint(b, ".SH COMMANDS\n")
		}
		fmt.Fprintf(b, ".TP\n.BR %s (%d)\n%s\n", roff(name(sub)), section, roff(sub.Short))
	}
}

// flags writes a section of flags, if there are any.
func flags(b *bytes.Buffer, title string, set *pflag.FlagSet) {
	if !set.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(b, ".SH %s\n", title)
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Deprecated != "" {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		spelling := `\fB` + roff("--"+f.Name) + `\fR`
		if f.Shorthand != "" {
			spelling = `\fB` + roff("-"+f.Shorthand) + `\fR, ` + spelling
		}
		if kind != "" {
			spelling += ` \fI` + roff(kind) + `\fR`
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" && !strings.Contains(usage, "(default") {
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(b, ".TP\n%s\n%s\n", spelling, roff(usage))
	})
}

// also writes the section SEE ALSO: the command above, and further pages.
func also(b *bytes.Buffer, c *cobra.Command, o Options) {
	var pages []string
	if c.HasParent() {
		pages = append(pages, fmt.Sprintf("%s(%d)", name(c.Parent()), o.Section))
	}
	pages = append(pages, o.SeeAlso...)
	if len(pages) == 0 {
		return
	}
	fmt.Fprint(b, ".SH SEE ALSO\n")
	for i, p := range pages {
		title, number, _ := strings.Cut(p, "(")
		separator := ","
		if i == len(pages)-1 {
			separator = ""
		}
		fmt.Fprintf(b, ".BR %s (%s%s\n", roff(title), number, separator)
	}
}

// roff returns text so that the formatter shows it as it is.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

// lowerFirst returns text with a lower-case first letter, unless it begins with
// an abbreviation.
func lowerFirst(text string) string {
	if len(text) > 1 && text[1] >= 'A' && text[1] <= 'Z' {
		return text
	}
	return strings.ToLower(text[:1]) + text[1:]
}
