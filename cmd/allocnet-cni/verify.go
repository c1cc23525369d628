package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/allocnet/allocnet/cmd/internal/cni"
)

// readAnswer reads the body of an answer: an object whose only keys are result and
// error, each at most once.
func readAnswer(body []byte) (*answer, error) {
	m, ok := membersOf(body)
	a := &answer{Result: m.values["result"], Error: m.values["error"]}
	known := 0
	for _, value := range []json.RawMessage{a.Result, a.Error} {
		if value != nil {
			known++
		}
	}
	if !ok || m.repeated || known != len(m.values) {
		return nil, errors.New("the body is not the expected object")
	}
	return a, nil
}

// verify returns errNoAnswer unless the answer is valid for the command and the CNI
// version of its configuration. Valid are an error with a code and a message, a result
// in that version for an ADD, and an empty answer for every other command.
func (a *answer) verify(command, version string) error {
	reason := ""
	switch {
	case a.Error != nil && a.Result != nil:
		reason = "both a result and an error"
	case a.Error != nil && !isError(a.Error):
		reason = "an error without a code or a message"
	case a.Error != nil:
	case command == cni.Add:
		reason = whyNoResult(a.Result, version)
	case a.Result != nil:
		reason = "a result, but " + command + " has none"
	}
	if reason == "" {
		return nil
	}
	return exchangeError("answer to "+command, errors.New(reason))
}

// isError reports whether a value is an error as the specification defines it.
func isError(value []byte) bool {
	m, ok := membersOf(value)
	var code *uint32
	_, hasMessage := m.text("msg")
	return ok && hasMessage && json.Unmarshal(m.values["code"], &code) == nil && code != nil && *code > 0
}

// whyNoResult returns why a value is not the result of an ADD, or "".
func whyNoResult(result []byte, version string) string {
	m, ok := membersOf(result)
	got, _ := m.text("cniVersion")
	switch {
	case !ok:
		return "no result"
	case got != version:
		return fmt.Sprintf("a result in version %q, not %q", got, version)
	}
	return ""
}
