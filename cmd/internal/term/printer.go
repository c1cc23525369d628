// Package term writes the output of the command line: plain to a pipe or file, with
// colours, status lines and folded tables to a terminal.
package term

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/term"
)

// Printer writes output: with colours and status lines to a terminal, plain to a pipe. It is
// safe for concurrent use.
type Printer struct {
	Terminal bool // status lines can be shown and erased
	Colored  bool
	Columns  int // width of the terminal, to which tables are folded; 0 for no limit

	mu     sync.Mutex
	w      io.Writer
	status bool  // a status line is shown
	err    error // the first error of writing
}

// ErrOutput is the error if the output of a command could not be written.
var ErrOutput = errors.New("write output")

// New returns a Printer. It uses the features of a terminal if w is one.
func New(w io.Writer) *Printer {
	f, ok := w.(*os.File)
	terminal := ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
	p := &Printer{w: w, Terminal: terminal, Colored: terminal && os.Getenv("NO_COLOR") == ""}
	if terminal {
		p.Columns = usualColumns
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			p.Columns = columns
		}
	}
	return p
}

// usualColumns is the width of a terminal that does not report it.
const usualColumns = 80

// Height returns the lines of the terminal.
func (p *Printer) Height() int {
	if f, ok := p.w.(*os.File); ok {
		if _, lines, err := term.GetSize(int(f.Fd())); err == nil && lines > 0 {
			return lines
		}
	}
	return usualLines
}

// usualLines is the height of a terminal that does not report it.
const usualLines = 24

const wipe = "\r\x1b[K"

// Write erases a status line before it writes.
func (p *Printer) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status {
		p.status = false
		if _, err := io.WriteString(p.w, wipe); err != nil {
			return 0, p.failed(err)
		}
	}
	if _, err := p.w.Write(p.harmless(data)); err != nil {
		return 0, p.failed(err)
	}
	return len(data), nil
}

// controls matches what a terminal does not show but obeys: control characters other than
// tab and line feed, those that change the direction of text, and the sequences that set a style.
var controls = regexp.MustCompile("\x1b\\[[0-9;]*m|[\\x00-\\x08\\x0b-\\x1f\\x7f\u0080-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

// painted begins the sequences of Paint, with a number that no value contains. A Printer writes them
// without the number.
var painted = fmt.Sprintf("\x1b[%d;", rand.Uint64())

// harmless replaces what controls matches. Processes and chains of nftables, for example, have
// names that a workload chooses. Only the styles of Paint stay.
func (p *Printer) harmless(text []byte) []byte {
	return controls.ReplaceAllFunc(text, func(found []byte) []byte {
		if style, ok := bytes.CutPrefix(found, []byte(painted)); ok {
			return append([]byte("\x1b["), style...)
		}
		return []byte("?")
	})
}

// failed stores the first error of writing.
func (p *Printer) failed(err error) error {
	if err == nil {
		return nil
	}
	if p.err == nil {
		p.err = fmt.Errorf("%w: %w", ErrOutput, err)
	}
	return p.err
}

// Failure returns the first error of writing.
func (p *Printer) Failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// SetStatus shows a status line on a terminal until the next write; "" erases it.
func (p *Printer) SetStatus(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.Terminal || text == "" && !p.status {
		return
	}
	p.status = text != ""
	text = string(p.harmless([]byte(text)))
	if runes := []rune(text); p.Columns > 0 && len(runes) >= p.Columns {
		text = string(runes[:p.Columns-1]) // a second line could not be erased
	}
	_, _ = io.WriteString(p.w, wipe+text)
}

// Redraw moves the cursor of a terminal to its first line and erases everything.
func (p *Printer) Redraw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status = false
	_, err := io.WriteString(p.w, cleared)
	_ = p.failed(err)
}

// cleared is what Redraw writes.
const cleared = "\x1b[H\x1b[J"

// Printf writes text; Failure returns its error.
func (p *Printer) Printf(format string, args ...any) {
	_, _ = fmt.Fprintf(p, format, args...)
}

// JSON prints v as indented JSON.
func (p *Printer) JSON(v any) error { return p.encode(v, "  ") }

// JSONLine prints v on one line, for programs that read a stream.
func (p *Printer) JSONLine(v any) error { return p.encode(v, "") }

// encode prints JSON. Characters that a Printer would replace are escaped, so that no value changes.
func (p *Printer) encode(v any, indent string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := p.Write(controls.ReplaceAllFunc(b.Bytes(), func(found []byte) []byte {
		r, _ := utf8.DecodeRune(found)
		return fmt.Appendf(nil, "\\u%04x", r)
	}))
	return err
}

// Style is an SGR parameter.
type Style string

// The styles of texts.
const (
	Plain  Style = ""
	Bold   Style = "1"
	Dim    Style = "2"
	Red    Style = "31"
	Green  Style = "32"
	Yellow Style = "33"
)

// Paint returns a text in a style, or unchanged if the output is not coloured. The text is for a Printer:
// its sequences are not yet those of a terminal.
func (p *Printer) Paint(s Style, text string) string {
	if !p.Colored || s == Plain || text == "" {
		return text
	}
	return painted + string(s) + "m" + text + painted + "0m"
}

// Mark returns the sign of success: a tick on a terminal, otherwise a word.
func (p *Printer) Mark() string {
	if p.Terminal {
		return "✓"
	}
	return "ok:"
}

// Cell is one field of a table.
type Cell struct {
	Text  string
	Style Style
}

// Cells returns a row of texts without a style.
func Cells(texts ...string) []Cell {
	row := make([]Cell, len(texts))
	for i, t := range texts {
		row[i].Text = t
	}
	return row
}

// Table prints rows in columns, folded to the terminal. An empty header is omitted.
func (p *Printer) Table(header []string, rows [][]Cell) {
	if len(header) > 0 {
		first := Cells(header...)
		for i := range first {
			first[i].Style = Bold
		}
		rows = append([][]Cell{first}, rows...)
	}
	for _, row := range rows {
		for i := range row {
			if row[i].Text == "" {
				row[i] = Cell{"-", Dim}
			}
		}
	}
	widths := fittedWidths(rows, p.Columns)
	var b strings.Builder
	for _, row := range rows {
		b.WriteString(p.foldedRow(row, widths))
	}
	p.Printf("%s", b.String())
}
