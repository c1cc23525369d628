package term

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	rows := [][]Cell{{{"é", Green}, {"", Plain}}, {{"long name", Plain}, {"x", Plain}}}
	var b bytes.Buffer
	New(&b).Table([]string{"A", "B"}, rows)
	require.Equal(t, "A          B\né          -\nlong name  x\n", b.String())

	b.Reset()
	(&Printer{w: &b, Colored: true}).Table([]string{"A", "B"}, rows)
	require.Equal(t, "\x1b[1mA\x1b[0m          \x1b[1mB\x1b[0m\n\x1b[32mé\x1b[0m          \x1b[2m-\x1b[0m\nlong name  x\n", b.String())
}

// TestControlCharacters: what a workload names does not command the terminal.
func TestControlCharacters(t *testing.T) {
	const foreign = "a\x1b]0;title\a\x1b[2J\x1b[31mb\r\u009b1;1Hc\x7f\té\u202e\u2066\u200f\u061c\n"
	const harmless = "a?]0;title??[2J?b??1;1Hc?\té????\n"
	var b strings.Builder
	New(&b).Printf("%s", foreign)
	require.Equal(t, harmless, b.String())
	b.Reset()
	p := &Printer{w: &b, Terminal: true, Colored: true}
	p.Printf("%s", foreign)
	require.Equal(t, harmless, b.String())
	b.Reset()
	p.Printf("%s", p.Paint(Red, foreign))
	require.Equal(t, "\x1b[31m"+harmless+"\x1b[0m", b.String())
	b.Reset()
	p.Table(nil, [][]Cell{{{"\x1b[8mhidden\u202e", Bold}}})
	require.Equal(t, "\x1b[1m?hidden?\x1b[0m\n", b.String())
	b.Reset()
	for _, print := range []func(any) error{p.JSON, p.JSONLine} {
		require.NoError(t, print("\x1b[31m\u202e\x7fé<"))
		require.Equal(t, `"\u001b[31m\u202e\u007fé<"`+"\n", b.String())
		b.Reset()
	}
	p.SetStatus("a\x1b[1;1Hb")
	require.Equal(t, wipe+"a?[1;1Hb", b.String())
}

func TestStatusLine(t *testing.T) {
	var b bytes.Buffer
	p := &Printer{w: &b, Terminal: true}
	p.SetStatus("")
	p.SetStatus("one")
	p.SetStatus("two")
	p.Printf("done\n")
	p.Printf("more\n")
	p.SetStatus("three")
	p.SetStatus("")
	require.Equal(t, wipe+"one"+wipe+"two"+wipe+"done\nmore\n"+wipe+"three"+wipe, b.String())

	b.Reset()
	New(&b).SetStatus("nothing")
	require.Empty(t, b.String(), "not on a terminal")
}

func TestDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m", 47 * time.Hour: "47h", 49 * time.Hour: "2d",
	} {
		require.Equal(t, want, Age(d))
	}
	for d, want := range map[time.Duration]string{
		123 * time.Microsecond: "0.1 ms", 12345 * time.Microsecond: "12 ms", 1234 * time.Millisecond: "1.2 s",
	} {
		require.Equal(t, want, Span(d))
	}
}

// TestShortenFirst: each row is one line, as far as the other columns permit it.
func TestShortenFirst(t *testing.T) {
	header := []string{"ID", "RECEIVED", "CONNECTIONS"}
	show := func(columns int) []string {
		rows := [][]Cell{Cells("8d4a4b0e-93a7-4b3c-8f2c-0a4d7a0c9d11", "1.0 KiB", "0"), Cells("web", "510 B", "12")}
		ShortenFirst(header, rows, columns)
		return []string{rows[0][0].Text, rows[1][0].Text}
	}
	require.Equal(t, []string{"8d4a4b0e-93a7-4…", "web"}, show(39))
	for _, columns := range []int{0, 20, 80} {
		require.Equal(t, []string{"8d4a4b0e-93a7-4b3c-8f2c-0a4d7a0c9d11", "web"}, show(columns))
	}
}

// TestFolded: the lines below the first one have the indentation, which the first one has already.
func TestFolded(t *testing.T) {
	var b strings.Builder
	p := &Printer{w: &b, Terminal: true, Columns: 10}
	p.Folded(4, Plain, "one two three")
	require.Equal(t, "one\n    two\n    three\n", b.String())
	require.Equal(t, "✓", p.Mark())

	b.Reset()
	p = New(&b)
	p.Folded(4, Plain, "one two three")
	require.Equal(t, "one two three\n", b.String())
	require.Equal(t, "ok:", p.Mark())
}

func TestTexts(t *testing.T) {
	require.Equal(t, []string{"0 links", "1 link", "2 links"}, []string{Plural(0, "link"), Plural(1, "link"), Plural(2, "link")})
	require.Equal(t, "  one\n  two", Indent("one\ntwo\n\n", "  "))
}

func TestFold(t *testing.T) {
	require.Equal(t, []string{"one two", "three"}, Fold("one two three", 7))
	require.Equal(t, []string{"a /etc/", "cni/", "net.d/x b"}, Fold("a /etc/cni/net.d/x b", 9))
	require.Equal(t, []string{"ä", "too", "lon", "g ö"}, Fold("ä toolong ö", 3))
	require.Equal(t, []string{"one two three"}, Fold("one two three", 0))
	require.Equal(t, []string{"one two", "three"}, Fold("one two\nthree", 0))
	require.Equal(t, []string{"one", "two", "", "x"}, Fold("one two\n\nx", 5))
	for _, text := range []string{"", " ", "/", "a  b", "a, b"} {
		require.NotEmpty(t, Fold(text, 1))
	}
}

// TestTableInATerminal: the widest columns are folded first.
func TestTableInATerminal(t *testing.T) {
	var b strings.Builder
	p := &Printer{w: &b, Terminal: true, Columns: 80}
	p.Table([]string{"A", "B", "C"}, [][]Cell{Cells("x", strings.Repeat("word ", 20)+"end", "10 20"), Cells("", "b", "c")})
	lines := strings.Split(b.String(), "\n")
	require.Equal(t, "x  word word word word word word word word word word word word word word  10 20", lines[1])
	require.Equal(t, "   word word word word word word end", lines[2])
	require.Equal(t, "-  b"+strings.Repeat(" ", 70)+"c", lines[3])
}
