// Package fakeplugin lets a test binary act as a CNI plugin that misbehaves on
// request. The plugin's configuration selects the behaviour for each command,
// and a log file records the calls.
package fakeplugin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
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
}

// Call is one line of the log.
type Call struct {
	Type, Command, ID, Netns, IfName, Args string
	PID                                    int
	Inode                                  uint64 // inode of the file at Netns; 0 if there is none
	Stdin                                  json.RawMessage
}

const sleeper = "ALLOCNET_FAKEPLUGIN_SLEEPER"

// Main runs the fake plugin and exits if the binary was started as one. Call it
// first in TestMain.
func Main() {
	if os.Getenv(sleeper) != "" {
		hang()
	}
	if os.Getenv("CNI_COMMAND") == "" {
		// With the race detector, every process sleeps for a second before it
		// exits.
		os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE"))
		return
	}
	if err := run(os.Getenv("CNI_COMMAND")); err != nil {
		fmt.Fprintln(os.Stderr, "fake plugin:", err)
		os.Exit(3)
	}
	os.Exit(0)
}

// Install installs fake plugins of the given types in a directory.
func Install(dir string, types ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, t := range types {
		if err := os.Symlink(self, filepath.Join(dir, t)); err != nil {
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

func run(command string) error {
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	if command == "VERSION" {
		_, err := fmt.Print(`{"cniVersion":"1.1.0","supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}`)
		return err
	}
	var conf struct {
		Type       string          `json:"type"`
		CNIVersion string          `json:"cniVersion"`
		PrevResult json.RawMessage `json:"prevResult"`
		Fake       Config          `json:"fake"`
	}
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return err
	}
	before, err := Commands(conf.Fake.Log)
	if err != nil {
		return err
	}
	if err := logCall(conf.Fake.Log, conf.Type, stdin); err != nil {
		return err
	}
	b := conf.Fake.On[command]
	if b.Only > 0 && strings.Count(strings.Join(before, "\n"), conf.Type+" "+command) >= b.Only {
		b = Behaviour{Result: b.Result}
	}
	if b.Result == nil {
		b.Result = conf.PrevResult
	}
	return b.act(command, conf.CNIVersion)
}

func (b Behaviour) act(command, version string) error {
	if b.Grandchild {
		c := exec.Command("/proc/self/exe")
		c.Env = append(os.Environ(), sleeper+"=1")
		c.Stdout = os.Stdout
		if err := c.Start(); err != nil {
			return err
		}
	}
	if b.KillGroup {
		_ = syscall.Kill(0, syscall.SIGKILL)
	}
	if b.Hang {
		hang()
	}
	fmt.Fprint(os.Stderr, b.Stderr)
	switch {
	case b.Stdout != "":
		fmt.Print(strings.Repeat(b.Stdout, max(b.Repeat, 1)))
	case b.Code != 0 || b.Msg != "":
		json.NewEncoder(os.Stdout).Encode(map[string]any{"cniVersion": version, "code": b.Code, "msg": b.Msg})
		os.Exit(1)
	case b.Exit == 0 && command == "ADD":
		fmt.Print(string(b.Result))
	}
	os.Exit(b.Exit)
	return nil
}

func logCall(log, pluginType string, stdin []byte) error {
	f, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	return json.NewEncoder(f).Encode(Call{
		Type: pluginType, Command: os.Getenv("CNI_COMMAND"), ID: os.Getenv("CNI_CONTAINERID"),
		Netns: os.Getenv("CNI_NETNS"), IfName: os.Getenv("CNI_IFNAME"), Args: os.Getenv("CNI_ARGS"),
		PID: os.Getpid(), Inode: inode(os.Getenv("CNI_NETNS")), Stdin: stdin,
	})
}

func inode(path string) uint64 {
	var stat syscall.Stat_t
	if syscall.Stat(path, &stat) != nil {
		return 0
	}
	return stat.Ino
}

// hang blocks forever in a way that the runtime does not report as a deadlock.
func hang() {
	for {
		syscall.Pause()
	}
}
