package redact

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// The limits of an error's text. A name in it can be as long as a request, and it can
// have one cause per allocation.
const (
	// mostLines is the maximum number of lines, one per cause.
	mostLines = 64
	mostBytes = 2048 // per line
)

// Text returns the text of an error for clients: limited in length, without
// JSON objects.
func Text(text string) string { return Bound(Objects(text)) }

// Bound returns the text of an error with at most 64 lines, one per cause, of some two
// thousand bytes each. If it omits text, it states how much.
func Bound(text string) string {
	lines := strings.Split(text, "\n")
	more := len(lines) - mostLines
	if more > 0 {
		lines = lines[:mostLines]
	}
	for i, line := range lines {
		lines[i] = boundLine(line)
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("... and %d more lines", more))
	}
	return strings.Join(lines, "\n")
}

// boundLine removes the middle of a long line, because a line begins with the failed
// action and ends with the cause.
func boundLine(line string) string {
	if len(line) <= mostBytes {
		return line
	}
	half := mostBytes/2 - len("[... 4294967296 bytes ...]")
	begin, end := half, len(line)-half
	for begin > 0 && !utf8.RuneStart(line[begin]) {
		begin--
	}
	for end < len(line) && !utf8.RuneStart(line[end]) {
		end++
	}
	return fmt.Sprintf("%s[... %d bytes ...]%s", line[:begin], end-begin, line[end:])
}
