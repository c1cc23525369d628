package term

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Fold breaks a text into lines with a maximum width, 0 for none: at its line breaks, between
// words, within paths, and anywhere in a piece that is longer than a line.
func Fold(text string, columns int) (lines []string) {
	for line := range strings.SplitSeq(text, "\n") {
		lines = append(lines, foldLine(line, columns)...)
	}
	return lines
}

// foldLine is Fold for a text without line breaks.
func foldLine(text string, columns int) []string {
	if columns <= 0 || utf8.RuneCountInString(text) <= columns {
		return []string{text}
	}
	var lines []string
	line := ""
	for _, piece := range pieces(text) {
		if line != "" && utf8.RuneCountInString(strings.TrimRight(line+piece, " ")) > columns {
			lines = append(lines, strings.TrimRight(line, " "))
			line = ""
		}
		line += piece
		for utf8.RuneCountInString(strings.TrimRight(line, " ")) > columns {
			whole := []rune(line)
			lines, line = append(lines, string(whole[:columns])), string(whole[columns:])
		}
	}
	return append(lines, line)
}

// pieces splits a text where it can be broken: after words, after the elements of paths, and
// between names and values.
func pieces(text string) (list []string) {
	for _, word := range strings.SplitAfter(strings.ReplaceAll(text, "\n", " "), " ") {
		separator := "="
		if strings.HasPrefix(word, "/") {
			separator = "/"
		}
		list = append(list, strings.SplitAfter(word, separator)...)
	}
	return list
}

// gap is the space between two columns of a table.
const gap = 2

// fittedWidths returns the widths of the columns of a table with a maximum width; 0 stands
// for no maximum. It narrows the widest columns first, below their longest pieces only if
// necessary, and the first column, which has the IDs, last.
func fittedWidths(rows [][]Cell, room int) []int {
	widths := columnWidths(rows)
	excess := -room - gap
	for _, width := range widths {
		excess += width + gap
	}
	if room == 0 || excess <= 0 {
		return widths
	}
	excess = narrow(widths, widest(rows, pieces), excess)
	least := slices.Repeat([]int{leastColumns}, len(widths))
	least[0] = widths[0]
	excess = narrow(widths, least, excess)
	narrow(widths, slices.Repeat([]int{leastColumns}, len(widths)), excess)
	for i := range widths { // folded, they may be narrower still
		widths[i] = widest(rows, func(text string) []string { return Fold(text, widths[i]) })[i]
	}
	return widths
}

// leastColumns is the minimum width of a column.
const leastColumns = 8

// narrow narrows the widest columns, down to the minimum of each, and returns the width that
// is still to be saved.
func narrow(widths, least []int, excess int) int {
	for ; excess > 0; excess-- {
		at := -1
		for i, width := range widths {
			if width > least[i] && (at < 0 || width > widths[at]) {
				at = i
			}
		}
		if at < 0 {
			break
		}
		widths[at]--
	}
	return excess
}

// widest returns by column the width of the widest piece.
func widest(rows [][]Cell, broken func(text string) []string) []int {
	var widths []int
	for _, row := range rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 1)
			}
			for _, part := range broken(c.Text) {
				widths[i] = max(widths[i], utf8.RuneCountInString(strings.TrimRight(part, " ")))
			}
		}
	}
	return widths
}

// columnWidths returns by column the width of the widest text.
func columnWidths(rows [][]Cell) []int {
	return widest(rows, func(text string) []string { return Fold(text, 0) })
}

// foldedRow returns the lines of a row of a table.
func (p *Printer) foldedRow(row []Cell, widths []int) string {
	folded := make([][]string, len(row))
	height := 1
	for i, c := range row {
		folded[i] = Fold(c.Text, widths[i])
		height = max(height, len(folded[i]))
	}
	var b strings.Builder
	for n := range height {
		var line strings.Builder
		pending := 0 // spaces before the next text
		for i, c := range row {
			text := ""
			if n < len(folded[i]) {
				text = folded[i][n]
			}
			if text != "" {
				line.WriteString(strings.Repeat(" ", pending))
				line.WriteString(p.Paint(c.Style, text))
				pending = 0
			}
			pending += widths[i] + gap - utf8.RuneCountInString(text)
		}
		b.WriteString(line.String() + "\n")
	}
	return b.String()
}

// Folded ends a line that has an indentation already, and continues below it if the text has
// several lines or is wider than the terminal.
func (p *Printer) Folded(indent int, look Style, text string) {
	for i, line := range Fold(text, max(p.Columns-indent, 0)) {
		if i > 0 {
			p.Printf("%*s", indent, "")
		}
		p.Printf("%s\n", p.Paint(look, line))
	}
}

// ShortenFirst shortens the texts of the first column, so that each row of a table is one line
// of the terminal, if that leaves enough of them.
func ShortenFirst(header []string, rows [][]Cell, columns int) {
	room := columns
	for _, width := range columnWidths(append([][]Cell{Cells(header...)}, rows...))[1:] {
		room -= gap + width
	}
	if room < leastColumns {
		return
	}
	for _, row := range rows {
		if text := []rune(row[0].Text); len(text) > room {
			row[0].Text = string(text[:room-1]) + "…"
		}
	}
}
