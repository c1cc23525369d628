package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestVersion derives the version from the tags of repositories.
func TestVersion(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "tools"), 0o755))
	script, err := os.ReadFile(filepath.Join(top(t), "tools/version"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tools/version"), script, 0o755))
	do := func(args ...string) string {
		t.Helper()
		c := exec.Command(args[0], args[1:]...)
		c.Dir = dir
		c.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
			"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a")
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return strings.TrimSpace(string(out))
	}
	commit := func() string {
		do("git", "commit", "-q", "--allow-empty", "-m", "c")
		return "g" + do("git", "rev-parse", "--short=10", "HEAD")
	}
	do("git", "init", "-q")
	do("git", "add", "tools")
	id := commit()
	require.Equal(t, "0.0.0+1."+id, do("tools/version"), "no tag")
	do("git", "tag", "v1.2.3")
	do("git", "tag", "cmd/v1.2.3")
	require.Equal(t, "1.2.3", do("tools/version"))
	id = commit()
	require.Equal(t, "1.2.3+1."+id, do("tools/version"))
	do("git", "tag", "-a", "-m", "t", "v1.3.0-rc.1")
	require.Equal(t, "1.3.0-rc.1", do("tools/version"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tools/version"), append(script, '\n'), 0o755))
	require.Equal(t, "1.3.0-rc.1+dirty", do("tools/version"))
}

// TestSystemFiles has systemd's own programs read the files of the package.
func TestSystemFiles(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"etc", "usr/lib/sysusers.d", "usr/lib/tmpfiles.d", "run"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	for _, kind := range []string{"sysusers", "tmpfiles"} {
		content, err := os.ReadFile(filepath.Join(top(t), "packaging", kind+".d/allocnet.conf"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(root, "usr/lib", kind+".d/allocnet.conf"), content, 0o644))
	}
	out, err := exec.Command("systemd-sysusers", "--root="+root, "allocnet.conf").CombinedOutput()
	require.NoError(t, err, "%s", out)
	groups, err := os.ReadFile(filepath.Join(root, "etc/group"))
	require.NoError(t, err)
	require.Regexp(t, `(?m)^allocnet:`, string(groups))
	if os.Getuid() != 0 { // tmpfiles changes owners
		return
	}
	out, err = exec.Command("systemd-tmpfiles", "--root="+root, "--create", "allocnet.conf").CombinedOutput()
	require.NoError(t, err, "%s", out)
	info, err := os.Stat(filepath.Join(root, "run/allocnet"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), info.Mode().Perm())
}

// TestScripts runs the scripts of the Debian package on a root directory, where
// they must not touch this host.
func TestScripts(t *testing.T) {
	root := t.TempDir()
	bin := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bin, "deb-systemd-helper"), []byte("#!/bin/sh\n"), 0o755))
	for _, name := range []string{"systemctl", "deb-systemd-invoke"} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\ntouch \"$DPKG_ROOT/touched\"\n"), 0o755))
	}
	script := func(name string, args ...string) (string, error) {
		c := exec.Command(filepath.Join(top(t), "packaging/deb", name), args...)
		c.Env = append(os.Environ(), "DPKG_ROOT="+root, "PATH="+bin+":"+os.Getenv("PATH"))
		out, err := c.CombinedOutput()
		return string(out), err
	}
	for _, name := range []string{"rpm/post", "rpm/preun", "rpm/postun", "release", "deb/postinst", "deb/prerm", "deb/postrm"} {
		out, err := exec.Command("sh", "-n", filepath.Join(top(t), "packaging", name)).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}

	plugins := filepath.Join(root, "opt/cni/bin")
	require.NoError(t, os.MkdirAll(plugins, 0o755))
	require.NoError(t, os.Symlink("/usr/bin/allocnet-plugins-shim", filepath.Join(plugins, "ptp")))
	out, err := script("prerm", "remove")
	require.Error(t, err)
	require.Contains(t, out, "allocnet plugins uninstall DIRECTORY")
	_, err = script("prerm", "upgrade", "2")
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(plugins, "ptp")))
	_, err = script("prerm", "remove")
	require.NoError(t, err)

	records := filepath.Join(root, "run/allocnet/allocs")
	require.NoError(t, os.MkdirAll(records, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(records, "web.json"), nil, 0o600))
	out, err = script("postrm", "purge")
	require.NoError(t, err, out)
	require.Contains(t, out, "is kept: it has the records of allocations")
	require.FileExists(t, filepath.Join(records, "web.json"))
	require.NoError(t, os.Remove(filepath.Join(records, "web.json")))
	out, err = script("postrm", "purge")
	require.NoError(t, err, out)
	require.NoDirExists(t, filepath.Join(root, "run/allocnet"))
	require.NoFileExists(t, filepath.Join(root, "touched"))
}
