package server

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// tempDir returns a directory whose path is short enough for sockets.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "d")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func listen(t *testing.T, s Socket) *Listener {
	t.Helper()
	l, err := Listen(s)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Release()) })
	return l
}

func TestSocket(t *testing.T) {
	dir := tempDir(t)
	gid := os.Getgid()
	group := ""
	if os.Getuid() == 0 {
		gid, group = 12345, "12345"
	}
	l := listen(t, Socket{Path: dir + "/a/b/s", Owner: strconv.Itoa(os.Getuid()), Group: group, Mode: 0o620})
	info, err := os.Stat(dir + "/a/b/s")
	require.NoError(t, err)
	require.Equal(t, fs.ModeSocket|0o620, info.Mode())
	require.EqualValues(t, gid, info.Sys().(*syscall.Stat_t).Gid)
	got, ok := l.Group()
	require.True(t, ok)
	require.EqualValues(t, gid, got)
	require.False(t, l.Passed())

	accepted(t, l)
	require.NoError(t, os.Chmod(dir+"/a/b/s", 0o600))
	_, ok = l.Group()
	require.False(t, ok, "the group cannot connect")
	entries, err := os.ReadDir(dir + "/a/b")
	require.NoError(t, err)
	require.Len(t, entries, 2, "the socket and its lock")
}

// accepted asserts that the listener accepts a connection.
func accepted(t *testing.T, l *Listener) {
	t.Helper()
	client, err := l.dial()
	require.NoError(t, err)
	server, err := l.Accept()
	require.NoError(t, err)
	require.IsType(t, new(net.UnixConn), server)
	require.NoError(t, client.Close())
	require.NoError(t, server.Close())
}

// TestDirectoryOfTheSocket checks that a directory for its owner only becomes searchable
// if the socket has a group.
func TestDirectoryOfTheSocket(t *testing.T) {
	for group, want := range map[string]fs.FileMode{"": 0o700, strconv.Itoa(os.Getgid()): 0o711} {
		dir := tempDir(t)
		listen(t, Socket{Path: dir + "/s", Group: group, Mode: 0o660})
		info, err := os.Stat(dir)
		require.NoError(t, err)
		require.Equal(t, want, info.Mode().Perm())
	}
	dir := tempDir(t)
	require.NoError(t, os.Chmod(dir, 0o750)) // another mode is kept
	listen(t, Socket{Path: dir + "/s", Group: strconv.Itoa(os.Getgid()), Mode: 0o660})
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.EqualValues(t, 0o750, info.Mode().Perm())
}

// TestSocketAppearsComplete watches the directory: the socket appears once, with its
// final mode and owner.
func TestSocketAppearsComplete(t *testing.T) {
	dir := tempDir(t)
	w, err := fsnotify.NewWatcher()
	require.NoError(t, err)
	require.NoError(t, w.Add(dir))
	listen(t, Socket{Path: dir + "/s", Group: strconv.Itoa(os.Getgid()), Mode: 0o600})
	require.NoError(t, os.WriteFile(dir+"/end", nil, 0o600))
	var events []fsnotify.Op
	for e := range w.Events {
		if e.Name == dir+"/s" {
			events = append(events, e.Op)
		}
		if e.Name == dir+"/end" {
			break
		}
	}
	require.Equal(t, []fsnotify.Op{fsnotify.Create}, events)
	require.NoError(t, w.Close())
}

func TestLongestPath(t *testing.T) {
	dir := tempDir(t)
	path := filepath.Join(dir, strings.Repeat("x", 106-len(dir)))
	require.Len(t, path, 107)
	accepted(t, listen(t, Socket{Path: path, Mode: 0o600}))
}

func TestStaleSocket(t *testing.T) {
	dir := tempDir(t)
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: dir + "/s"})
	require.NoError(t, err)
	stale.SetUnlinkOnClose(false)
	require.NoError(t, stale.Close())
	require.NoError(t, os.MkdirAll(dir+"/s.new/socket", 0o700)) // left by a killed daemon
	require.NoError(t, os.WriteFile(dir+"/s.lock", nil, 0o600))
	accepted(t, listen(t, Socket{Path: dir + "/s", Mode: 0o600}))
}

// TestKilledOverAChild kills a daemon while it starts a plugin: the child has the
// daemon's files until it executes the plugin.
func TestKilledOverAChild(t *testing.T) {
	i := prepare(t, "child").ready()
	i.signal(syscall.SIGKILL)
	require.Error(t, i.cmd.Wait())
	conn, err := net.Dial("unix", i.dir+"/s")
	require.NoError(t, err, "the child has the socket")
	require.NoError(t, conn.Close())
	accepted(t, listen(t, Socket{Path: i.dir + "/s", Mode: 0o600}))
	announce(i.dir, "child")
}

func TestListenRefused(t *testing.T) {
	dir := tempDir(t)
	foreign, err := net.Listen("unix", dir+"/foreign")
	require.NoError(t, err)
	defer foreign.Close()
	require.NoError(t, os.WriteFile(dir+"/file", nil, 0o600))
	require.NoError(t, os.Symlink("nowhere", dir+"/link"))
	require.NoError(t, os.Symlink("nowhere", dir+"/trap.lock"))
	for name, test := range map[string]struct {
		socket Socket
		want   string
	}{
		"foreign":  {Socket{Path: "foreign"}, "another program listens, perhaps systemd for the daemon; stop it"},
		"file":     {Socket{Path: "file"}, "the file exists and is not a socket: remove it or set another socket"},
		"link":     {Socket{Path: "link"}, "the file exists and is not a socket"},
		"lock":     {Socket{Path: "trap"}, "open lock file: "},
		"in file":  {Socket{Path: "file/s"}, "create its directory: "},
		"no owner": {Socket{Path: "s", Owner: "no such user"}, "owner of the socket: user: unknown user no such user: create the user or set another owner"},
		"no group": {Socket{Path: "s", Group: "no such group"}, "group of the socket: group: unknown group no such group: create the group"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, test.socket.Path)
			test.socket.Path = path
			_, err := Listen(test.socket)
			require.ErrorContains(t, err, `listen on "`+path+`": `)
			require.ErrorContains(t, err, test.want)
			require.Equal(t, name == "foreign", strings.Contains(err.Error(), ErrInUse.Error()))
			require.NoFileExists(t, dir+"/nowhere")
		})
	}
	conn, err := net.Dial("unix", dir+"/foreign")
	require.NoError(t, err, "the other program still listens")
	require.NoError(t, conn.Close())
}

func TestTwoDaemons(t *testing.T) {
	first := prepare(t).ready()
	_, err := Listen(Socket{Path: first.dir + "/s", Mode: 0o600})
	require.ErrorIs(t, err, ErrInUse)
	require.EqualError(t, err, fmt.Sprintf(`listen on "%s/s": the socket is in use: another daemon (pid %d) serves it; stop that daemon or set another socket`,
		first.dir, first.cmd.Process.Pid))
	_, err = first.get("/healthz")
	require.NoError(t, err)
}

// passing starts a daemon as systemd does, with a socket.
func passing(t *testing.T, i *instance, files ...*os.File) {
	t.Helper()
	i.cmd = exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$0"`, os.Args[0])
	i.cmd.ExtraFiles = files
	i.launch("LISTEN_FDS=" + strconv.Itoa(len(files)))
}

func TestSocketFromSystemd(t *testing.T) {
	i := prepare(t)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: i.dir + "/s"})
	require.NoError(t, err)
	defer listener.Close()
	file, err := listener.File()
	require.NoError(t, err)
	defer file.Close()
	answered := make(chan error, 1)
	early, err := net.Dial("unix", i.dir+"/s")
	require.NoError(t, err)
	defer early.Close()
	_, err = early.Write([]byte("GET /healthz HTTP/1.0\r\n\r\n"))
	require.NoError(t, err)

	passing(t, i, file)
	go func() {
		answer := make([]byte, 12)
		_, err := early.Read(answer)
		if err == nil && string(answer) != "HTTP/1.0 200" {
			err = fmt.Errorf("answer %q", answer)
		}
		answered <- err
	}()
	require.NoError(t, <-answered, "a client that connected before the start is served")
	require.Contains(t, i.logged("listening"), `socket=`+i.dir+`/s passed_by_systemd=true`)
	_, err = lock(i.dir + "/s")
	require.ErrorIs(t, err, ErrInUse)
	i.signal(syscall.SIGTERM)
	i.ended(0)
	require.FileExists(t, i.dir+"/s", "systemd owns the file")
	conn, err := net.Dial("unix", i.dir+"/s")
	require.NoError(t, err, "systemd still listens")
	require.NoError(t, conn.Close())
}

func TestBadSocketsFromSystemd(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer tcp.Close()
	tcpFile, err := tcp.(*net.TCPListener).File()
	require.NoError(t, err)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	connected, other := os.NewFile(uintptr(pair[0]), "pair"), os.NewFile(uintptr(pair[1]), "pair")
	regular, err := os.Open("/dev/null")
	require.NoError(t, err)
	for _, f := range []*os.File{tcpFile, connected, other, regular} {
		defer f.Close()
	}
	for name, test := range map[string]struct {
		files []*os.File
		want  string
	}{
		"two":       {[]*os.File{tcpFile, tcpFile}, "systemd passed 2 sockets: set one ListenStream= in the socket unit"},
		"TCP":       {[]*os.File{tcpFile}, "it is not a Unix socket: set ListenStream= to a path in the socket unit"},
		"connected": {[]*os.File{connected}, "it does not listen: set ListenStream= and Accept=no"},
		"file":      {[]*os.File{regular}, "it does not listen"},
	} {
		t.Run(name, func(t *testing.T) {
			i := prepare(t)
			passing(t, i, test.files...)
			require.Contains(t, i.ended(1), "listen on the socket from systemd: "+test.want)
		})
	}
}
