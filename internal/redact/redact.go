// Package redact takes configurations, in which passwords can be, out of what is told
// to others.
package redact

import (
	"regexp"
	"strings"
)

// object is where a JSON object with a member begins, also inside a string that is
// quoted, and quoted again.
var object = regexp.MustCompile(`\{(?:\s|\\+[nrt])*\\*"`)

// Objects returns a text without the JSON objects that it quotes: all from the
// beginning of the first to the last brace is cut, or to the end where it was cut off
// before.
func Objects(text string) string {
	if strings.IndexByte(text, '{') < 0 {
		return text
	}
	found := object.FindStringIndex(text)
	if found == nil {
		return text
	}
	begin, rest := found[0], ""
	if end := strings.LastIndexByte(text, '}'); end > begin {
		rest = text[end+1:]
	}
	return text[:begin] + "{...}" + rest
}
