package hosts

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestMain(m *testing.M) {
	if act := os.Getenv(actVariable); act != "" {
		if err := perform(act, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := privhost.Main(m, ownDirs...)
	if programsDir != "" {
		_ = os.RemoveAll(programsDir)
	}
	os.Exit(code)
}

// programsDir has the programs that the tests run, built by the first test that needs them.
var programsDir string

// programs returns the directory with allocnet, allocnetd and flanneld. Tests add more to it.
func programs(t testing.TB) string {
	t.Helper()
	if programsDir != "" {
		return programsDir
	}
	dir, err := os.MkdirTemp("", "hosts-programs-")
	if err != nil {
		t.Fatal(err)
	}
	programsDir = dir
	build(t, "../../cmd", dir, "./allocnet", "./allocnetd")
	build(t, "flanneld", dir, "github.com/flannel-io/flannel")
	if err := os.Rename(dir+"/flannel", dir+"/flanneld"); err != nil {
		t.Fatal(err)
	}
	return dir
}

func build(t testing.TB, module, dir string, packages ...string) {
	t.Helper()
	c := exec.Command("go", append([]string{"build", "-o", dir + "/"}, packages...)...)
	c.Dir, c.Env = module, append(os.Environ(), "GOWORK=off", "CGO_ENABLED=1") // flanneld has C code
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build %v: %v\n%s", packages, err, out)
	}
}
