// Package redact removes configurations, which may contain passwords, from
// errors and events.
package redact

import (
	"regexp"
	"strings"
)

// object matches the beginning of a JSON object that has a member. The object may be
// inside a string that is quoted, even more than once.
var object = regexp.MustCompile(`\{(?:\s|\\+[nrt])*\\*"`)

// Objects replaces each JSON object in a text by {...}. If the end of an object is not
// found, the rest of the text is removed. The same applies from the first remaining
// brace on if a network configuration in another notation follows it.
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

// length returns the length of the object at the beginning of a text, or the length of
// the text if the object has no end. A quotation mark delimits a string of the object
// if it has as many backslashes before it as the first quotation mark.
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
