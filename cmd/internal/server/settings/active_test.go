package settings

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/skip"
)

// others holds a value other than the default for every setting.
var others = map[string][]string{
	"socket.path": {"/a/ß \"\\${x}%{y}\n\u2028"}, "socket.owner": {"1"}, "socket.group": {"2"}, "socket.mode": {"0600"},
	"conf_dir": {"/c"}, "plugin_dirs": {"/p", "/q:,"}, "vendor_dir": {"/v"}, "state_dir": {"/cafe\u0301"}, // not in the composed form of Unicode
	"engine": {"exec"}, "networks": {}, "interface_prefix": {"net"}, "subnets": {"10.1.0.0/16"}, "subnets_from": {"/run/flannel/subnet.env"}, "routes.table": {"100"}, "routes.protocol": {"200"}, "routes.subnets": {"true"}, "routes.cluster": {"10.0.0.0/8", "fd00::/8"},
	"policy": {"isolated", "no-metadata"}, "ignore_port_mapping_host_ip": {"true"}, "allow_unserved": {"true"}, "host_listeners": {"refuse"}, "dynamic_ports": {"30000-30010"}, "repair_on_check": {"false"}, "allow_conflists": {"true"}, "timeout": {"1h0m1s"}, "shutdown_grace": {"0s"},
	"retry.attempts": {"7"}, "retry.delay": {"1ms"}, "retry.jitter": {"1h"},
	"limits.operations": {"1"}, "limits.queue": {"2"}, "limits.per_allocation": {"3"}, "limits.streams": {"4"},
	"limits.connections": {"5"}, "limits.body": {"1025B"}, "limits.operation_timeout": {"7s"},
	"reconcile.mode": {"report"}, "reconcile.wait": {"8s"}, "reconcile.netns_gone": {"9s"}, "heal.enabled": {"false"}, "heal.check_interval": {"8s"}, "heal.receive_buffer": {"4097B"}, "pool.size": {"9"}, "pool.networks": {"web=32", "db=8"}, "pool.dir": {"/d"},
	"history.size": {"0B"}, "manager.enabled": {"true"}, "manager.primary": {"m"}, "manager.name": {"n"}, "manager.own_file": {"o.conflist"},
	"manager.readiness_file": {"/r"}, "manager.labels_from": {"a/b=C", "d=C"}, "manager.policy_from": {"P"}, "manager.pod_annotations": {"true"}, "log.level": {"off"}, "log.json": {"true"}, "telemetry.otlp_endpoint": {"http://h:1"},
	"metrics.listen": {"[::1]:9653"}, "metrics.web_config": {"/w.yml"}, "ui": {"[::1]:9654"},
}

// TestActiveFile writes and reads all settings: the defaults, and each one changed.
func TestActiveFile(t *testing.T) {
	file := ActiveFile(filepath.Join(t.TempDir(), "s"))
	require.NoError(t, os.Mkdir(file+".new", 0o700), "left by a killed daemon")
	same := func(s Settings) {
		t.Helper()
		require.NoError(t, s.Write(file))
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode())
		got, err := Read(file)
		require.NoError(t, err)
		require.Equal(t, s.Values(), got.Values())
		require.Equal(t, s.Configurator(), got.Configurator())
	}
	same(Default())
	all := Default()
	all.Networks = []string{"one"}
	for i := range table {
		require.Contains(t, others, table[i].key())
		before := all
		require.NoError(t, table[i].in(&all).set(others[table[i].key()]), table[i].key())
		live, restart := all.Changes(&before)
		require.Len(t, append(live, restart...), 1, "%s is another value", table[i].key())
		same(all)
	}
	require.Len(t, others, len(table))
	entries, err := os.ReadDir(filepath.Dir(file))
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestActiveFileNotWritable(t *testing.T) {
	s := Default()
	dir := t.TempDir()
	require.ErrorIs(t, s.Write(filepath.Join(dir, "none/f")), fs.ErrNotExist)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "f"), 0o700))
	require.ErrorIs(t, s.Write(filepath.Join(dir, "f")), fs.ErrExist)
	require.NoFileExists(t, filepath.Join(dir, "f.new"))
	s.StateDir = "/a\xff"
	require.ErrorContains(t, s.Write(filepath.Join(dir, "g")), `state_dir: "/a\xff" is not UTF-8`)
	require.NoFileExists(t, filepath.Join(dir, "g"))
}

func TestRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	_, err := Read(file)
	require.ErrorIs(t, err, fs.ErrNotExist)
	for name, test := range map[string]struct{ text, err string }{
		"cut short":   {`{"engine": ["ex`, "unexpected end of JSON input"},
		"no list":     {`{"engine": "exec"}`, "cannot unmarshal"},
		"two":         {`{"engine": ["exec", "exec"]}`, "engine: give one value"},
		"bad value":   {`{"engine": ["x"]}`, `engine: "x" is not one of`},
		"a newer one": {`{"state_dir": ["/x"], "what": ["ever"]}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(file, []byte(test.text), 0o600))
			s, err := Read(file)
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				require.ErrorContains(t, err, file)
				return
			}
			want := Default()
			want.StateDir = "/x"
			require.NoError(t, err)
			require.Equal(t, want, s, "a missing setting has its default")
		})
	}
}

// TestWary checks which owners, permissions and kinds of files are accepted.
func TestWary(t *testing.T) {
	const other = 12345
	const refused = "can be written by other users: chown it to root and chmod go-w"
	for name, test := range map[string]struct {
		owner int // 0 for the user of this process
		mode  fs.FileMode
		link  bool // a symbolic link leads there
		err   string
	}{
		"own":                    {0, 0o600, false, ""},
		"own, others read it":    {0, 0o644, false, ""},
		"own, behind a link":     {0, 0o600, true, ""},
		"its group writes it":    {0, 0o620, false, refused},
		"all users write it":     {0, 0o602, false, refused},
		"another's":              {other, 0o600, false, refused},
		"another's, read-only":   {other, 0o444, false, refused}, // its owner can chmod it
		"another's, with a link": {other, 0o600, true, refused},
		"a pipe":                 {0, fs.ModeNamedPipe | 0o600, false, "is not a regular file"},
		"a link to a pipe":       {0, fs.ModeNamedPipe | 0o600, true, "is not a regular file"},
		"a directory":            {0, fs.ModeDir | 0o700, false, "is not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			skip.Unless(t, test.owner == 0 || os.Geteuid() == 0, "only root can give a file away")
			file := filepath.Join(t.TempDir(), "f")
			switch test.mode.Type() {
			case fs.ModeNamedPipe:
				require.NoError(t, unix.Mkfifo(file, 0o600))
			case fs.ModeDir:
				require.NoError(t, os.Mkdir(file, 0o700))
			default:
				require.NoError(t, os.WriteFile(file, []byte(`{}`), 0o600))
				require.NoError(t, os.Chmod(file, test.mode))
			}
			if test.owner != 0 {
				require.NoError(t, os.Chown(file, test.owner, -1))
			}
			if test.link {
				require.NoError(t, os.Symlink(file, file+".link"))
				file += ".link"
			}
			_, err := Read(file)
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				_, err = Source{File: file, Wary: true}.Load()
				require.EqualError(t, err, file+": "+test.err)
				return
			}
			require.NoError(t, err)
			_, err = contents(file, true)
			require.NoError(t, err)
		})
	}
	file := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Chmod(file, 0o666))
	_, err := Source{File: file}.Load()
	require.NoError(t, err, "without Wary the file may have any owner")
}

// FuzzRead looks for files whose settings change when they are written and read again.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"engine": ["exec"], "networks": [], "state_dir": ["/\u0065\u0301"]}`))
	f.Add([]byte(`{"limits.body": ["1025B"], "engine": null}`))
	file := filepath.Join(f.TempDir(), "f")
	f.Fuzz(func(t *testing.T, data []byte) {
		require.NoError(t, os.WriteFile(file, data, 0o600))
		s, err := Read(file)
		if err != nil {
			return
		}
		require.NoError(t, s.Write(file))
		again, err := Read(file)
		require.NoError(t, err)
		require.Equal(t, s.Values(), again.Values())
	})
}
