package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/term"
)

// printer writes output: with colours and status lines to a terminal, plain to a pipe. It is
// safe for concurrent use.
type printer struct {
	terminal bool // status lines can be shown and erased
	colored  bool
	columns  int // width of the terminal, to which tables are folded; 0 for no limit

	mu     sync.Mutex
	w      io.Writer
	status bool  // a status line is shown
	err    error // the first error of writing
}

// errOutput is the error if the output of a command could not be written.
var errOutput = errors.New("write output")

func newPrinter(w io.Writer) *printer {
	f, ok := w.(*os.File)
	terminal := ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
	p := &printer{w: w, terminal: terminal, colored: terminal && os.Getenv("NO_COLOR") == ""}
	if terminal {
		p.columns = usualColumns
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			p.columns = columns
		}
	}
	return p
}

// usualColumns is the width of a terminal that does not report it.
const usualColumns = 80

// height returns the lines of the terminal.
func (p *printer) height() int {
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
func (p *printer) Write(data []byte) (int, error) {
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
// tab and line feed, and the sequences that set a style.
var controls = regexp.MustCompile("\x1b\\[[0-9;]*m|[\\x00-\\x08\\x0b-\\x1f\\x7f\u0080-\u009f]")

// harmless replaces control characters. Processes and chains of nftables, for example, have
// names that a workload chooses. Styles stay if the output is coloured.
func (p *printer) harmless(text []byte) []byte {
	return controls.ReplaceAllFunc(text, func(found []byte) []byte {
		if p.colored && len(found) > 2 {
			return found
		}
		return []byte("?")
	})
}

// failed stores the first error of writing.
func (p *printer) failed(err error) error {
	if err == nil {
		return nil
	}
	if p.err == nil {
		p.err = fmt.Errorf("%w: %w", errOutput, err)
	}
	return p.err
}

// failure returns the first error of writing.
func (p *printer) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// setStatus shows a status line on a terminal until the next write; "" erases it.
func (p *printer) setStatus(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.terminal || text == "" && !p.status {
		return
	}
	p.status = text != ""
	text = string(p.harmless([]byte(text)))
	if runes := []rune(text); p.columns > 0 && len(runes) >= p.columns {
		text = string(runes[:p.columns-1]) // a second line could not be erased
	}
	_, _ = io.WriteString(p.w, wipe+text)
}

// redraw moves the cursor of a terminal to its first line and erases everything.
func (p *printer) redraw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status = false
	_, err := io.WriteString(p.w, cleared)
	_ = p.failed(err)
}

// cleared is what redraw writes.
const cleared = "\x1b[H\x1b[J"

// printf writes text; failure returns its error.
func (p *printer) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(p, format, args...)
}

func (p *printer) json(v any) error {
	e := json.NewEncoder(p)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// jsonLine prints v on one line, for programs that read a stream.
func (p *printer) jsonLine(v any) error {
	e := json.NewEncoder(p)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// style is an SGR parameter.
type style string

const (
	plain  style = ""
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
)

func (p *printer) paint(s style, text string) string {
	if !p.colored || s == plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// cell is one field of a table.
type cell struct {
	text  string
	style style
}

func cells(texts ...string) []cell {
	row := make([]cell, len(texts))
	for i, t := range texts {
		row[i].text = t
	}
	return row
}

// table prints rows in columns, folded to the terminal. An empty header is omitted.
func (p *printer) table(header []string, rows [][]cell) {
	if len(header) > 0 {
		first := cells(header...)
		for i := range first {
			first[i].style = bold
		}
		rows = append([][]cell{first}, rows...)
	}
	for _, row := range rows {
		for i := range row {
			if row[i].text == "" {
				row[i] = cell{"-", dim}
			}
		}
	}
	widths := fittedWidths(rows, p.columns)
	var b strings.Builder
	for _, row := range rows {
		b.WriteString(p.foldedRow(row, widths))
	}
	p.printf("%s", b.String())
}
