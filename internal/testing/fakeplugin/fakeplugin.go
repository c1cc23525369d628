// Package fakeplugin has a CNI plugin for tests that misbehaves on request. The
// plugin's configuration selects the behaviour for each command, and a log file
// records the calls.
package fakeplugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
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
}

// Call is one line of the log.
type Call struct {
	Type, Command, ID, Netns, IfName, Args string
	PID                                    int
	Inode                                  uint64 // inode of the file at Netns; 0 if there is none
	Stdin                                  json.RawMessage
}

// Tests are the tests of a test binary that uses fake plugins:
//
//	func TestMain(m *testing.M) { os.Exit(privhost.Main(fakeplugin.Tests{M: m})) }
type Tests struct {
	M interface{ Run() int }
}

// Run runs the tests, and removes the program that Install has built for them. With the race detector,
// processes that the tests start do not sleep for a second before they exit.
func (t Tests) Run() int {
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	program.running = true
	status := t.M.Run()
	if program.dir != "" {
		_ = os.RemoveAll(program.dir)
	}
	return status
}

// program is the plugin. It is a program of its own because a test binary with the race detector takes
// several times as long to start.
var program struct {
	running bool
	once    sync.Once
	dir     string
	err     error
}

// build builds the plugin in a temporary directory, once.
func build() (path string, err error) {
	program.once.Do(func() {
		if !program.running {
			program.err = errors.New("TestMain does not run fakeplugin.Tests")
			return
		}
		if program.dir, program.err = os.MkdirTemp("", "allocnet-fakeplugin-"); program.err != nil {
			return
		}
		c := exec.Command("go", "build", "-o", program.dir, "github.com/allocnet/allocnet/internal/testing/fakeplugin/plugin")
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			program.err = fmt.Errorf("build the fake plugin: %w: %s", err, out)
		}
	})
	return filepath.Join(program.dir, "plugin"), program.err
}

// Install installs fake plugins of the given types in a directory, as links to a program that exists until
// the tests have ended.
func Install(dir string, types ...string) error {
	if len(types) == 0 {
		return nil
	}
	plugin, err := build()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, t := range types {
		if err := os.Symlink(plugin, filepath.Join(dir, t)); err != nil {
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
