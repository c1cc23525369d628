// Package redact takes configurations, in which passwords can be, out of what is told
// to others.
package redact

import "strings"

// Objects returns a text without the JSON objects that it quotes: all from the first
// brace to the last is cut, or to the end where it was cut off before.
func Objects(text string) string {
	begin := strings.IndexByte(text, '{')
	if begin < 0 {
		return text
	}
	rest := ""
	if end := strings.LastIndexByte(text, '}'); end > begin {
		rest = text[end+1:]
	}
	return text[:begin] + "{...}" + rest
}

// Configurations is Objects for a text that quotes a network configuration; any other
// is not changed.
func Configurations(text string) string {
	if !strings.Contains(text, "cniVersion") {
		return text
	}
	return Objects(text)
}
