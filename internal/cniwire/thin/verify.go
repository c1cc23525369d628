package thin

import "strconv"

// Verify returns ErrHung unless an answer is one to that command, for a configuration of
// that version of CNI: an error with a code and a message, or for an ADD a result in that
// version, and for every other command nothing.
func (a *Answer) Verify(command, version string) error {
	reason := ""
	switch {
	case a.Error != nil && a.Result != nil:
		reason = "both a result and an error"
	case a.Error != nil && !isError(a.Error):
		reason = "an error without a code or a message"
	case a.Error != nil:
	case command == Add:
		reason = lacksOf(a.Result, version)
	case a.Result != nil:
		reason = "a result, where " + command + " has none"
	}
	if reason == "" {
		return nil
	}
	return while("answer to "+command, garbled(reason))
}

// isError tells an error as the specification has it.
func isError(value []byte) bool {
	coded, said := false, false
	object := Members(value, func(key string, value []byte) {
		switch key {
		case "code":
			code, err := strconv.ParseUint(string(value), 10, 32)
			coded = err == nil && code > 0
		case "msg":
			said = value[0] == '"'
		}
	})
	return object && coded && said
}

// lacksOf says what keeps a value from being the result of an ADD; "" for one.
func lacksOf(result []byte, version string) string {
	var got string
	object := Members(result, func(key string, value []byte) {
		if key == "cniVersion" {
			got, _ = Text(value)
		}
	})
	switch {
	case !object:
		return "no result"
	case got != version:
		return "a result in version " + strconv.Quote(got) + ", not " + strconv.Quote(version)
	}
	return ""
}
