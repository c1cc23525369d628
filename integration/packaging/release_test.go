package packaging

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/skip"
)

// releases is the directory of the releases that the tests built.
var releases string

const (
	testVersion = "1.2.3"
	nextVersion = "1.2.4"
)

// requirePackageTest skips a test that needs a release unless it was requested.
func requirePackageTest(t *testing.T) {
	t.Helper()
	if os.Getenv("ALLOCNET_PACKAGE_TEST") == "" {
		skip.LeaveTo(t, "make package-test")
	}
}

// built builds the release of both architectures once, and returns its
// directory.
var built = sync.OnceValues(func() (string, error) { return build("first", "../..", "VERSION="+testVersion) })

// builtNext builds the following version for this architecture once.
var builtNext = sync.OnceValues(func() (string, error) {
	return build("next", "../..", "VERSION="+nextVersion, "ARCHES="+runtime.GOARCH)
})

func build(name, checkout string, env ...string) (string, error) {
	if releases == "" {
		var err error
		if releases, err = os.MkdirTemp("", "allocnet-releases-"); err != nil {
			return "", err
		}
	}
	dist := filepath.Join(releases, name)
	c := exec.Command(filepath.Join(checkout, "packaging/release"))
	c.Env = append(append(os.Environ(), "DIST="+dist), env...)
	c.Stdout, c.Stderr = os.Stderr, os.Stderr
	return dist, c.Run()
}

// sums returns the checksums of the files of a directory by name.
func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	all := map[string]string{}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		sum := sha256.Sum256(content)
		all[e.Name()] = hex.EncodeToString(sum[:])
	}
	return all
}

// TestReproducible builds the release a second time, from a copy of the
// checkout, with another umask and other settings of the environment.
func TestReproducible(t *testing.T) {
	requirePackageTest(t)
	first, err := built()
	require.NoError(t, err)
	clone := filepath.Join(t.TempDir(), "elsewhere")
	require.NoError(t, os.Mkdir(clone, 0o755))
	out, err := exec.Command("sh", "-ec", `umask 077; cd "$1"; git ls-files -z --cached --others --exclude-standard | tar -c --null --no-recursion -T - -f - | tar -C "$2" -x -f -; cp -a .git "$2"`, "sh", top(t), clone).CombinedOutput()
	require.NoError(t, err, "%s", out)
	second, err := build("second", clone, "VERSION="+testVersion, "GOFLAGS=-tags=unused", "CFLAGS=-O0 -g", "LDFLAGS=-v", "GOAMD64=v2", "TZ=Asia/Tokyo", "LC_ALL=C.UTF-8")
	require.NoError(t, err)
	require.Equal(t, sums(t, first), sums(t, second))
	require.NoError(t, os.RemoveAll(second))
}

// TestContents checks the files of the release, without installing them.
func TestContents(t *testing.T) {
	requirePackageTest(t)
	dist, err := built()
	require.NoError(t, err)
	prefix := "allocnet-" + testVersion
	want := []string{prefix + "-oci.tar"}
	for _, names := range [][]string{
		{prefix + "-linux-amd64", "allocnet_" + testVersion + "-1_amd64.deb", prefix + "-1.x86_64.rpm"},
		{prefix + "-linux-arm64", "allocnet_" + testVersion + "-1_arm64.deb", prefix + "-1.aarch64.rpm"},
	} {
		want = append(want, names[0]+".tar.gz", names[0]+".cdx.json", names[1], names[2])
		requireTarball(t, filepath.Join(dist, names[0]+".tar.gz"))
		requireBill(t, filepath.Join(dist, names[0]+".cdx.json"))
	}
	all := sums(t, dist)
	listed, err := os.ReadFile(filepath.Join(dist, "SHA256SUMS"))
	require.NoError(t, err)
	require.Len(t, all, len(want)+1)
	for _, name := range want {
		require.Contains(t, string(listed), all[name]+"  "+name+"\n")
	}
	out, err := exec.Command("lintian", "--allow-root", "--fail-on", "error,warning", "--profile", "debian", filepath.Join(dist, "allocnet_"+testVersion+"-1_"+runtime.GOARCH+".deb")).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// requireTarball checks the archive of one architecture.
func requireTarball(t *testing.T, file string) {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	require.NoError(t, err)
	modes := map[string]int64{}
	for r := tar.NewReader(unzipped); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		require.Zero(t, h.Uid+h.Gid, h.Name)
		modes["/"+h.Name] = h.Mode
		if h.Typeflag == tar.TypeSymlink {
			require.Equal(t, "/usr/lib/allocnet/allocnet-cni-shim", h.Linkname)
		}
	}
	for _, program := range []string{"/usr/bin/allocnet", "/usr/bin/allocnetd", "/usr/bin/allocnet-plugins", "/usr/bin/allocnet-plugins-shim", "/usr/lib/allocnet/allocnet-cni", "/usr/lib/allocnet/allocnet-cni-shim"} {
		require.EqualValues(t, 0o755, modes[program], program)
	}
	for _, file := range []string{
		"/etc/allocnet/allocnetd.hcl", "/usr/lib/systemd/system/allocnetd.service", "/usr/lib/systemd/system/allocnetd.socket",
		"/usr/lib/systemd/system/allocnetd.socket.d/group.conf", "/usr/lib/sysusers.d/allocnet.conf", "/usr/lib/tmpfiles.d/allocnet.conf",
		"/usr/share/man/man1/allocnet-setup.1.gz", "/usr/share/man/man8/allocnetd.8.gz", "/usr/share/bash-completion/completions/allocnet",
		"/usr/share/zsh/site-functions/_allocnet", "/usr/share/fish/vendor_completions.d/allocnet.fish", "/usr/share/doc/allocnet/conflists/10-bridged.conflist",
		"/usr/share/allocnet/prometheus/alerts.yml", "/usr/share/allocnet/grafana/allocnet.json",
		"/usr/share/doc/allocnet/docs/troubleshooting.md", "/usr/share/doc/allocnet/docs/nomad/cni.nomad.hcl", "/usr/share/doc/allocnet/SECURITY.md",
	} {
		require.EqualValues(t, 0o644, modes[file], file)
	}
	require.Contains(t, modes, "/opt/cni/bin/allocnet")
}

// requireBill checks the bill of materials of one architecture.
func requireBill(t *testing.T, file string) {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	var bill struct {
		BOMFormat  string
		Components []struct{ Name, Version string }
		Metadata   struct{ Component struct{ Version string } }
	}
	require.NoError(t, json.Unmarshal(content, &bill))
	require.Equal(t, "CycloneDX", bill.BOMFormat)
	require.Equal(t, testVersion, bill.Metadata.Component.Version)
	names := map[string]string{}
	for _, c := range bill.Components {
		names[c.Name] = c.Version
	}
	for _, name := range []string{"/usr/bin/allocnetd", "/usr/lib/allocnet/allocnet-cni-shim", "std", "github.com/spf13/cobra", "github.com/containernetworking/cni"} {
		require.Contains(t, names, name)
	}
	require.Equal(t, strings.TrimPrefix(runtime.Version(), "go"), names["std"])
}

// TestRPM installs the packages of both architectures into an empty root,
// without their scripts, and has rpm verify and remove them.
func TestRPM(t *testing.T) {
	requirePackageTest(t)
	dist, err := built()
	require.NoError(t, err)
	rpm := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("rpm", args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	for _, arch := range []string{"x86_64", "aarch64"} {
		file := filepath.Join(dist, "allocnet-"+testVersion+"-1."+arch+".rpm")
		require.Equal(t, testVersion+" 1 "+arch, rpm("-qp", "--qf", "%{VERSION} %{RELEASE} %{ARCH}", file))
		require.Equal(t, "/etc/allocnet/allocnetd.hcl\n", rpm("-qpc", file))
		require.Contains(t, rpm("-K", "--nosignature", file), "digests OK")
		for _, script := range strings.SplitAfter(rpm("-qp", "--scripts", file), "\n\n") {
			_, text, _ := strings.Cut(script, "\n")
			c := exec.Command("sh", "-n")
			c.Stdin = strings.NewReader(text)
			out, err := c.CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
		root := t.TempDir()
		rpm("--root", root, "-i", "--nodeps", "--noscripts", "--ignorearch", file)
		rpm("--root", root, "-V", "--nodeps", "allocnet")
		link, err := os.Readlink(filepath.Join(root, "usr/libexec/cni/allocnet"))
		require.NoError(t, err)
		require.FileExists(t, filepath.Join(root, link))
		rpm("--root", root, "-e", "--noscripts", "allocnet")
		require.NoFileExists(t, filepath.Join(root, "usr/bin/allocnet"))
	}
}
