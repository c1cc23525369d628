// Package redact removes configurations, which may contain passwords, from
// errors and events.
package redact

import (
	"regexp"
	"strings"
)

// object is where a JSON object with a member begins, also inside a string that is
// quoted, and quoted again.
var object = regexp.MustCompile(`\{(?:\s|\\+[nrt])*\\*"`)

// Objects returns a text without the JSON objects that it quotes. One whose end is not
// there, or not found, is cut with all that follows; so is all from the first brace of
// a text that has a network configuration in another form.
func Objects(text string) string {
	var kept strings.Builder
	for strings.IndexByte(text, '{') >= 0 {
		found := object.FindStringIndex(text)
		if found == nil {
			break
		}
		kept.WriteString(text[:found[0]] + "{...}")
		text = text[found[0]+length(text[found[0]:]):]
	}
	if begin := strings.IndexByte(text, '{'); begin >= 0 && strings.Contains(text[begin:], "cniVersion") {
		text = text[:begin] + "{...}"
	}
	return kept.String() + text
}

// length is that of the object that a text begins with. Its strings begin and end with
// as many backslashes as the first one begins with.
func length(text string) int {
	slashes, depth, inside, level := 0, 0, false, -1
	for i := range len(text) {
		switch text[i] {
		case '\\':
			slashes++
			continue
		case '"':
			if level < 0 {
				level = slashes
			}
			if slashes == level {
				inside = !inside
			}
		case '{':
			if !inside {
				depth++
			}
		case '}':
			if !inside {
				depth--
			}
			if depth == 0 {
				return i + 1
			}
		}
		slashes = 0
	}
	return len(text)
}
