package hostlocal

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestResolvConfThatIsNone: an endless file or a pipe without a writer does not
// block the ADD, and no address is leased.
func TestResolvConfThatIsNone(t *testing.T) {
	dir := t.TempDir()
	pipe, huge, link := filepath.Join(dir, "pipe"), filepath.Join(dir, "huge"), filepath.Join(dir, "link")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	require.NoError(t, os.WriteFile(huge, nil, 0o600))
	require.NoError(t, os.Truncate(huge, 1<<40))
	require.NoError(t, os.Symlink("/dev/zero", link))
	for path, want := range map[string]string{
		pipe: "named pipe", huge: "too large", "/dev/zero": "device", link: "device", dir: "directory", dir + "/none": "no such file",
	} {
		conf := `{"cniVersion":"1.0.0","name":"n","ipam":{"type":"host-local","dataDir":"DATA","subnet":"10.1.2.0/24","resolvConf":"` + path + `"}}`
		failed := make(chan error, 1)
		go func() {
			_, err := native(t, call{command: "ADD", id: "c1", conf: conf}, dir)
			failed <- err
		}()
		select {
		case err := <-failed:
			require.ErrorContains(t, err, `resolvConf "`+path+`"`)
			require.ErrorContains(t, err, want)
		case <-time.After(30 * time.Second):
			t.Fatalf("%s: ADD waits", path)
		}
	}
	require.NoDirExists(t, filepath.Join(dir, "n"))
}

func TestResolvConf(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	link := file + ".link"
	require.NoError(t, os.Symlink(file, link), "as systemd-resolved has it")
	text := "# comment\nnameserver 192.0.2.1\nnameserver 2001:db8::1\ndomain a.example\nsearch b.example c.example\noptions ndots:2\n"
	require.NoError(t, os.WriteFile(file, []byte(text+strings.Repeat("#", maxResolvConf-len(text))), 0o600))
	dns, err := readResolvConf(t.Context(), link)
	require.NoError(t, err)
	require.Equal(t, []string{"192.0.2.1", "2001:db8::1"}, dns.Nameservers)
	require.Equal(t, "a.example", dns.Domain)
	require.Equal(t, []string{"b.example", "c.example"}, dns.Search)
	require.Equal(t, []string{"ndots:2"}, dns.Options)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = readResolvConf(ctx, link)
	require.ErrorIs(t, err, context.Canceled)
}
