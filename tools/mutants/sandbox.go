package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// sandboxName is the name of the process that sets up a sandbox.
const sandboxName = "mutate-sandbox"

// sandbox is what the first process of a sandbox is told.
//
// Faults in code that removes links, files and processes must not reach the host. A
// sandbox has its own processes, network, mounts and IPC. All files are read-only,
// but for a temporary directory, the cache of Go, the programs, and run-time directories that
// start out empty. All of its processes end with its first one.
type sandbox struct {
	Tree, Work string
	Temporary  string // a directory that becomes /tmp
	Control    string // the file that becomes the control file
	Dir        string // where the command starts
	Command    []string
}

// writable are directories that stay writable.
func (s *sandbox) writable() []string {
	var dirs []string
	for _, name := range []string{"GOCACHE"} {
		out, err := exec.Command("go", "env", name).Output()
		if err == nil {
			dirs = append(dirs, strings.TrimSpace(string(out)))
		}
	}
	return append(dirs, filepath.Join(s.Work, buildCache), filepath.Join(s.Tree, "bin"))
}

// empty are directories that start out empty in each sandbox.
var empty = []string{"/run", "/var/lib/cni", "/var/tmp", "/dev/shm"}

// command returns the command that runs in the sandbox.
func (s *sandbox) command() (*exec.Cmd, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{sandboxName, string(text)}
	cmd.Env = s.environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC,
		Setsid:     true,
	}
	return cmd, nil
}

// environment is that of the tests: the go command is the one that keeps what it builds.
func (s *sandbox) environment() []string {
	drop := []string{"PATH=", "TMPDIR=", "GOTMPDIR="}
	environ := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return slices.ContainsFunc(drop, func(name string) bool { return strings.HasPrefix(v, name) })
	})
	return append(environ, "PATH="+filepath.Join(s.Work, "path")+":"+os.Getenv("PATH"), "PWD="+s.Dir)
}

// sandboxInit is the first process of a sandbox. It collects orphans, and returns the
// exit status of the command.
func sandboxInit(args []string) int {
	var s sandbox
	if err := json.Unmarshal([]byte(args[0]), &s); err != nil {
		fmt.Fprintln(os.Stderr, "read sandbox:", err)
		return 125
	}
	if err := s.setUp(); err != nil {
		fmt.Fprintln(os.Stderr, "set up sandbox:", err)
		return 125
	}
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE)
	path, err := exec.LookPath(s.Command[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 125
	}
	process, err := os.StartProcess(path, s.Command, &os.ProcAttr{Dir: s.Dir, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 125
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			fmt.Fprintln(os.Stderr, "wait:", err)
			return 125
		case pid == process.Pid && status.Signaled():
			return 128 + int(status.Signal())
		case pid == process.Pid:
			return status.ExitStatus()
		}
	}
}

// setUp makes the files read-only and mounts what the sandbox has of its own.
func (s *sandbox) setUp() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, dir := range s.writable() {
		if err := bind(dir, dir); err != nil {
			return err
		}
	}
	if err := bind(s.Control, filepath.Join(s.Work, "control")); err != nil {
		return err
	}
	// The control groups are mounted below /sys; the new /sys would cover them.
	groups := filepath.Join(s.Temporary, "groups")
	if err := os.Mkdir(groups, 0o755); err != nil {
		return err
	}
	if err := bind("/sys/fs/cgroup", groups); err != nil {
		return err
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	if err := unix.Mount(groups, "/sys/fs/cgroup", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move control groups: %w", err)
	}
	if err := os.Remove(groups); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := bind(s.Temporary, "/tmp"); err != nil {
		return err
	}
	for _, dir := range empty {
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make / read-only: %w", err)
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	// A fault that fills the memory ends its process, not others of the host.
	const memory = 6 << 30
	return unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: memory, Max: memory})
}

func bind(from, to string) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", from, to, err)
	}
	return nil
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

// writeControl creates a control file. Its size is that which processes map.
func writeControl(path string, mutant int, tracing bool) error {
	content := make([]byte, 4096)
	binary.LittleEndian.PutUint32(content, uint32(mutant))
	if tracing {
		content[4] = 1
	}
	if err := os.WriteFile(path, content, 0o666); err != nil {
		return err
	}
	return os.Chmod(path, 0o666) // also for processes that dropped their credentials
}

// readControl returns the mutants that processes reached.
func readControl(path string) ([]int, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var reached []int
	for i, b := range content[8:] {
		if b != 0 {
			reached = append(reached, i)
		}
	}
	return reached, nil
}

// execStep runs a command by hand.
func execStep(c *config, command []string) error {
	if len(command) == 0 {
		return fmt.Errorf("exec: no command")
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := c.prepare(); err != nil {
		return err
	}
	p, err := newPlace(c, "exec")
	if err != nil {
		return err
	}
	defer p.remove()
	cmd, err := p.command(c, dir, c.mutant, false, command)
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}
