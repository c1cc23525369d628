package sandbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestValidateName(t *testing.T) {
	for _, name := range []string{
		"", ".", "..", "a/b", "/a", "a\x00", strings.Repeat("a", 256), strings.Repeat("é", 128),
		"-", "-a", "--help", "a\nb", "\n", "a\tb", "a\x1b[2J", "a\x7f", "a\u0085", "a\u2028b", "a\u202eb", "\xff",
	} {
		require.ErrorIs(t, ValidateName(name), ErrInvalidName, "%q", name)
	}
	for _, name := range []string{"a", "...", ".a", "a b", "a-", "é", strings.Repeat("a", 255)} {
		require.NoError(t, ValidateName(name), "%q", name)
	}
}

func TestCreateInvalidName(t *testing.T) {
	needKernel(t)
	_, err := Create("../c1")
	require.ErrorIs(t, err, ErrInvalidName)
	require.EqualError(t, err, `create sandbox in "/run/netns": invalid name: "../c1"`)
}

func TestCreateExisting(t *testing.T) {
	needKernel(t)
	s := create(t, "c1")
	before, err := identify(s.file)
	require.NoError(t, err)
	_, err = Create("c1")
	require.ErrorIs(t, err, ErrExist)
	require.ErrorContains(t, err, `create sandbox "/run/netns/c1": `)

	again, err := Open(s.Path())
	require.NoError(t, err)
	defer again.Close()
	after, err := identify(again.file)
	require.NoError(t, err)
	require.Equal(t, before, after, "the one that was there stays")
}

// TestCreateLeavesNothing lets every step fail, once before and once after its
// work.
func TestCreateLeavesNothing(t *testing.T) {
	needKernel(t)
	broken := errors.New("broken")
	for i, step := range steps {
		for name, failing := range map[string]func(string) error{
			"before": func(string) error { return broken },
			"after":  func(path string) error { return errors.Join(step(path), broken) },
		} {
			t.Run(fmt.Sprint(i, " ", name), func(t *testing.T) {
				before := snapshot(t)
				steps[i] = failing
				t.Cleanup(func() { steps[i] = step })
				_, err := Create("c1")
				require.ErrorIs(t, err, broken)
				require.NoFileExists(t, "/run/netns/c1")
				require.NotContains(t, snapshot(t).String(), "/run/netns/c1")
				require.Equal(t, strings.Count(before.String(), "nsfs"), strings.Count(snapshot(t).String(), "nsfs"))
				requireAllAtHome(t)
			})
		}
	}
}

func TestCreateInImpossibleDir(t *testing.T) {
	needKernel(t)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := CreateIn(file, "c1")
	require.ErrorIs(t, err, unix.ENOTDIR)
	require.ErrorContains(t, err, "create sandbox")
}

// TestCreateWithoutRights runs as a user that may create neither namespaces nor
// mounts.
func TestCreateWithoutRights(t *testing.T) {
	needKernel(t)
	s := create(t, "other")
	require.NoError(t, s.Do(func() error {
		require.NoError(t, dropPower())
		// The step runs on this thread, because capabilities belong to threads.
		require.ErrorIs(t, steps[0](""), unix.EPERM)
		require.ErrorIs(t, makeShared(DefaultDir), unix.EPERM)
		return nil
	}))
}

// TestLimit: the kernel's "no space left on device" is about a sysctl, which the error names.
func TestLimit(t *testing.T) {
	privhost.Require(t, "unshare")
	c := exec.Command("unshare", "-U", "-r", "sh", "-c", "echo 0 >/proc/sys/user/max_net_namespaces && exec "+os.Args[0])
	c.Env = append(os.Environ(), limitVariable+"=1")
	out, err := c.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "true create sandbox: make namespace: a limit of the host is reached: unshare: no space left on device: raise the sysctl user.max_net_namespaces\n", string(out))
	err = limited("fs.mount-max", os.NewSyscallError("mount", unix.ENOSPC))
	require.ErrorIs(t, err, allocnet.ErrLimit)
	require.ErrorIs(t, err, unix.ENOSPC)
	require.NotErrorIs(t, limited("fs.mount-max", unix.EPERM), allocnet.ErrLimit)
}

// TestCreateAtTheSameTime creates the first sandboxes of a directory
// concurrently, half of them with the same name.
func TestCreateAtTheSameTime(t *testing.T) {
	needKernel(t)
	dir := "/run/parallel"
	t.Cleanup(func() { require.NoError(t, os.Remove(dir)) })
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, 0)) })
	var mutex sync.Mutex
	results := map[string]int{}
	var wait sync.WaitGroup
	for i := range 32 {
		wait.Go(func() {
			name := "same"
			if i%2 == 0 {
				name = fmt.Sprint("c", i)
			}
			s, err := CreateIn(dir, name)
			mutex.Lock()
			defer mutex.Unlock()
			switch {
			case err == nil:
				results["made"]++
				t.Cleanup(func() { require.NoError(t, s.Destroy()) })
			case errors.Is(err, ErrExist):
				results["exists"]++
			default:
				t.Error(err)
			}
		})
	}
	wait.Wait()
	require.Equal(t, map[string]int{"made": 17, "exists": 15}, results)
	require.Equal(t, 1, strings.Count(snapshot(t).String(), "mount "+dir+" tmpfs\n"))
	requireAllAtHome(t)
}

// TestShareDirAgain: a directory that is no longer a mount point becomes one again.
func TestShareDirAgain(t *testing.T) {
	needKernel(t)
	dir := "/run/again"
	t.Cleanup(func() { require.NoError(t, os.Remove(dir)) })
	for range 2 {
		for _, name := range []string{"a", "b"} {
			s, err := CreateIn(dir, name)
			require.NoError(t, err)
			mounts, err := os.ReadFile("/proc/self/mountinfo")
			require.NoError(t, err)
			require.Regexp(t, ` `+dir+` \S+ shared:`, string(mounts))
			require.NoError(t, s.Destroy())
		}
		require.NoError(t, unix.Unmount(dir, 0))
	}
}

// TestShareDirWaits lets another creator make the directory a mount point at the same time. A context
// ends the wait.
func TestShareDirWaits(t *testing.T) {
	needKernel(t)
	dir := "/run/contended"
	require.NoError(t, os.Mkdir(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.Remove(dir)) })
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, 0)) })
	unlock, err := lockDir(t.Context(), dir)
	require.NoError(t, err)
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = CreateNoted(short, dir, "x", func(Identity) error { return nil })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoFileExists(t, filepath.Join(dir, "x"))

	shared := make(chan error, 1)
	go func() { shared <- shareDir(t.Context(), dir) }()
	require.Eventually(t, func() bool { return isAwaited(t, dir) }, 10*time.Second, time.Millisecond)
	require.NoError(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	unlock()
	require.NoError(t, <-shared)
	require.Equal(t, 1, strings.Count(snapshot(t).String(), "mount "+dir+" tmpfs\n"))
}

// isAwaited reports whether one caller of lockDir has locked dir, and another one waits for it.
func isAwaited(t *testing.T, dir string) bool {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	open := 0
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err == nil && to == dir {
			open++
		}
	}
	return open == 2
}

// TestShareDirKeepsWhatIsThere: the directory contains a namespace before it
// becomes a mount point.
func TestShareDirKeepsWhatIsThere(t *testing.T) {
	needKernel(t)
	s := create(t, "c1")
	dir, old := "/run/older", "/run/older/c0"
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, reserve(old))
	require.NoError(t, unix.Mount(s.Path(), old, "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, errors.Join(Destroy(old), os.Remove(dir))) })
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	require.NoError(t, shareDir(t.Context(), dir))
	require.NoError(t, Validate(old))
}

func TestNoLeak(t *testing.T) {
	needKernel(t)
	cycle := func(rounds int) {
		var wait sync.WaitGroup
		for worker := range 16 {
			wait.Go(func() {
				for range rounds {
					s, err := Create(fmt.Sprint("c", worker))
					if err == nil {
						err = errors.Join(LoopbackUp(s.Path()), s.Do(func() error { return nil }), s.Destroy())
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wait.Wait()
	}
	cycle(2) // The runtime keeps the threads that it needed once.
	descriptors, threads := resources(t)
	cycle(13)
	descriptorsAfter, threadsAfter := resources(t)
	require.Equal(t, descriptors, descriptorsAfter)
	require.LessOrEqual(t, threadsAfter, threads+16, "208 sandboxes must not cost a thread each")
	requireAllAtHome(t)
}

// TestNoLeakInFailures opens files that are not sandboxes.
func TestNoLeakInFailures(t *testing.T) {
	needKernel(t)
	create(t, "c1")
	fail := func() {
		for _, path := range []string{"/proc/self/ns/net", "/proc/self/ns/mnt", "/etc/passwd"} {
			require.Error(t, Validate(path))
			require.Error(t, Destroy(path))
		}
		_, err := Create("c1")
		require.ErrorIs(t, err, ErrExist)
	}
	fail()
	before, _ := resources(t)
	for range 50 {
		fail()
	}
	after, _ := resources(t)
	require.Equal(t, before, after)
}

// TestSeenInOtherMountNamespaces checks the sandbox from a process that left
// the mount namespace before.
func TestSeenInOtherMountNamespaces(t *testing.T) {
	needKernel(t)
	create(t, "first") // makes the directory
	script := `mount --make-rslave / && echo ready && read go && stat -f -c %T /run/netns/first /run/netns/second` +
		` && echo done && read go && ls /run/netns`
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	output := bufio.NewReader(stdout)
	require.Equal(t, "ready\n", readLine(t, output))

	s := create(t, "second")
	_, err = io.WriteString(stdin, "go\n")
	require.NoError(t, err)
	require.Equal(t, "nsfs\n", readLine(t, output))
	require.Equal(t, "nsfs\n", readLine(t, output))
	require.Equal(t, "done\n", readLine(t, output))
	require.NoError(t, s.Destroy(), "also while it is mounted elsewhere")
	_, err = io.WriteString(stdin, "go\n")
	require.NoError(t, err)
	require.Equal(t, "first\n", readLine(t, output))
	require.NoError(t, cmd.Wait())
}

func readLine(t *testing.T, reader *bufio.Reader) string {
	t.Helper()
	line, err := reader.ReadString('\n')
	require.NoError(t, err)
	return line
}
