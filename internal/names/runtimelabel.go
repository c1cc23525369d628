package names

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// escaped is the form of what EscapeLabel returns in place of another text.
var escaped = regexp.MustCompile(`^(.*\.)?sha256-[0-9a-f]{20}$`)

const (
	escapedDigest = 10 // bytes
	maxReadable   = 63 - len(".sha256-") - 2*escapedDigest
)

// EscapeLabel returns the key and the value of a label with the texts of a runtime. A valid key or value stays
// as it is. Another text becomes its first 35 bytes, in which '-' replaces each byte that is not allowed, and, after
// ".sha256-", the first 20 hexadecimal digits of its digest. A valid text of this form is replaced as well, so that
// no text of another author becomes the same.
func EscapeLabel(key, value string) (string, string) {
	if ValidateLabelKey(key) != nil || escaped.MatchString(key) {
		key = escape(key)
	}
	if ValidateLabelValue(key, value) != nil || escaped.MatchString(value) {
		value = escape(value)
	}
	return key, value
}

func escape(text string) string {
	readable := []byte(text[:min(len(text), maxReadable)])
	for i, b := range readable {
		if !labelName.Match([]byte{b}) && b != '_' && b != '.' {
			readable[i] = '-'
		}
	}
	digest := sha256.Sum256([]byte(text))
	result := "sha256-" + hex.EncodeToString(digest[:escapedDigest])
	if first := strings.TrimLeft(string(readable), "-_."); first != "" {
		result = first + "." + result
	}
	return result
}
