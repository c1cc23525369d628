package netfilter

import "strings"

// Comment finds the comment among a rule's user data: records of type, length and
// value.
func Comment(data []byte) string {
	const typeComment = 0
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		kind, value := data[0], data[2:2+int(data[1])]
		if kind == typeComment {
			return strings.TrimSuffix(string(value), "\x00")
		}
		data = data[2+len(value):]
	}
	return ""
}
