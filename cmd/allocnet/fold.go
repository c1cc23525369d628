package main

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// fold breaks a text into lines of at most so many columns: between words and within
// paths, and anywhere in what is longer than a line.
func fold(text string, columns int) []string {
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

// pieces are what a text can be broken into: its words, each with the space behind it,
// the elements of paths, and names and their values.
func pieces(text string) (list []string) {
	for _, word := range strings.SplitAfter(text, " ") {
		separator := "="
		if strings.HasPrefix(word, "/") {
			separator = "/"
		}
		list = append(list, strings.SplitAfter(word, separator)...)
	}
	return list
}

// gap is between two columns of a table.
const gap = 2

// fittedWidths are the widths of the columns of a table that has room for so many columns
// of text in all, 0 for any number: the widest ones are made narrower, and than their longest
// pieces only where that does not do. The first column, which has the IDs, comes last.
func fittedWidths(rows [][]cell, room int) []int {
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
		widths[i] = widest(rows, func(text string) []string { return fold(text, widths[i]) })[i]
	}
	return widths
}

// leastColumns are left to a column in any case.
const leastColumns = 8

// narrow takes columns from the widest, down to the least of each, and returns how many
// are still to be taken.
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

// widest are, by columns, the widths of the widest parts into which texts are broken.
func widest(rows [][]cell, broken func(text string) []string) []int {
	var widths []int
	for _, row := range rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 1)
			}
			for _, part := range broken(c.text) {
				widths[i] = max(widths[i], utf8.RuneCountInString(strings.TrimRight(part, " ")))
			}
		}
	}
	return widths
}

// columnWidths are the widths of the widest texts.
func columnWidths(rows [][]cell) []int {
	return widest(rows, func(text string) []string { return []string{text} })
}

// foldedRow is a row of a table as lines, in which each cell has its column.
func (p *printer) foldedRow(row []cell, widths []int) string {
	folded := make([][]string, len(row))
	height := 1
	for i, c := range row {
		folded[i] = fold(c.text, widths[i])
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
				line.WriteString(p.paint(c.style, text))
				pending = 0
			}
			pending += widths[i] + gap - utf8.RuneCountInString(text)
		}
		b.WriteString(line.String() + "\n")
	}
	return b.String()
}
