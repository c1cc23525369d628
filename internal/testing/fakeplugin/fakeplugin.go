// Package fakeplugin has a CNI plugin for tests that misbehaves on request. The
// plugin's configuration selects the behaviour for each command, and a log file
// records the calls.
package fakeplugin

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/allocnet/allocnet/internal/testing/programs"
)

// Behaviour is what a fake plugin does for one command. The zero value
// succeeds: ADD returns Result or, without one, prevResult.
type Behaviour struct {
	Result     json.RawMessage `json:"result,omitempty"` // written to stdout unchanged
	Code       uint            `json:"code,omitempty"`   // fail with a CNI error of this code
	Msg        string          `json:"msg,omitempty"`    // message of that error
	Exit       int             `json:"exit,omitempty"`   // exit with this status, without output
	Stderr     string          `json:"stderr,omitempty"` // written to stderr first
	Stdout     string          `json:"stdout,omitempty"` // written in place of a result, Repeat times
	Repeat     int             `json:"repeat,omitempty"`
	Hang       bool            `json:"hang,omitempty"`       // block forever
	Grandchild bool            `json:"grandchild,omitempty"` // start a process that holds stdout and never ends
	KillGroup  bool            `json:"killGroup,omitempty"`  // kill its process group
	Only       int             `json:"only,omitempty"`       // apply this behaviour to the first Only calls, then succeed
}

// Config is the fake plugin's part of a plugin configuration.
type Config struct {
	Log string               `json:"log"` // file to which each call appends a Call as a line
	On  map[string]Behaviour `json:"on"`  // by CNI command
	// Interface are addresses in CIDR notation. If there are any, ADD first makes an interface with them in
	// the network namespace, and DEL removes it.
	Interface []string `json:"interface,omitempty"`
	// Inside are command lines of sh by CNI command, which run in the network namespace.
	Inside map[string]string `json:"inside,omitempty"`
	// VM is the name of a link in the network namespace that leads to a virtual machine. The result of ADD is
	// prevResult with that link and with an interface of the machine, which has the addresses of CNI_IFNAME, as
	// that of the plugin tc-redirect-tap.
	VM string `json:"vm,omitempty"`
}

// Netns stands for CNI_NETNS in the Result of a Behaviour.
const Netns = "CNI_NETNS"

// Call is one line of the log.
type Call struct {
	Type, Command, ID, Netns, IfName, Args string
	PID                                    int
	Inode                                  uint64 // inode of the file at Netns; 0 if there is none
	Stdin                                  json.RawMessage
}

// Install installs fake plugins of the given types in a directory, as links to a program of its own: a test
// binary with the race detector takes several times as long to start.
func Install(dir string, types ...string) error {
	if len(types) == 0 {
		return nil
	}
	dirOfPrograms, err := programs.Dir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, t := range types {
		if err := os.Symlink(filepath.Join(dirOfPrograms, programs.FakePlugin), filepath.Join(dir, t)); err != nil {
			return err
		}
	}
	return nil
}

// Calls reads a log, without the VERSION calls.
func Calls(log string) ([]Call, error) {
	data, err := os.ReadFile(log)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	var calls []Call
	for line := range bytes.Lines(data) {
		var c Call
		if err := json.Unmarshal(line, &c); err != nil {
			return nil, err
		}
		calls = append(calls, c)
	}
	return calls, nil
}

// Commands returns the commands in a log as "type COMMAND".
func Commands(log string) ([]string, error) {
	calls, err := Calls(log)
	commands := make([]string, 0, len(calls))
	for _, c := range calls {
		commands = append(commands, c.Type+" "+c.Command)
	}
	return commands, err
}
