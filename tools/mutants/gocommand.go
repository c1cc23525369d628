package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// buildCache is the directory of built programs in the work directory.
const buildCache = "programs"

// goCommand is the go command of the tests. Many tests build programs, which takes
// seconds of linking each time. The tree does not change while tests run, so a build
// with the same arguments yields the same programs: it copies those built before.
func goCommand(args []string) int {
	real, work, err := findGo()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if b, ok := parseBuild(args); ok {
		if err := b.provide(real, filepath.Join(work, buildCache)); err == nil {
			return 0
		}
	}
	err = syscall.Exec(real, append([]string{"go"}, args...), os.Environ())
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// findGo returns the real go command, and the work directory of this one.
func findGo() (real, work string, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", "", err
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		path := filepath.Join(dir, "go")
		target, err := filepath.EvalSymlinks(path)
		switch {
		case err != nil:
		case target == self:
			work = filepath.Dir(dir)
		case real == "":
			real = path
		}
	}
	if real == "" || work == "" {
		return "", "", errors.New("no other go command in PATH")
	}
	return real, work, nil
}

// build is a build whose result depends on the tree and its arguments only.
type build struct {
	output string
	args   []string // without the output
}

func parseBuild(args []string) (*build, bool) {
	if len(args) < 4 || args[0] != "build" {
		return nil, false
	}
	b := &build{args: []string{"build"}}
	for i := 1; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-o" && i+1 < len(args):
			i++
			b.output = args[i]
		case a == "-trimpath", strings.HasPrefix(a, "-buildmode="), strings.HasPrefix(a, "-ldflags="):
			b.args = append(b.args, a)
		case strings.HasPrefix(a, "."), strings.HasPrefix(a, "github.com/"):
			b.args = append(b.args, a)
		default:
			return nil, false
		}
	}
	return b, b.output != "" && b.output != os.DevNull
}

func (b *build) provide(real, cache string) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	info, err := os.Stat(b.output)
	many := strings.HasSuffix(b.output, "/") || err == nil && info.IsDir()
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %q %v %s %s %s", dir, b.args, many, os.Getenv("CGO_ENABLED"), os.Getenv("GOFLAGS"), os.Getenv("GOARCH")))
	stored := filepath.Join(cache, hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(stored); err != nil {
		if err := b.build(real, cache, stored); err != nil {
			return err
		}
	}
	programs, err := os.ReadDir(stored)
	if err != nil {
		return err
	}
	if many {
		if err := os.MkdirAll(b.output, 0o777); err != nil {
			return err
		}
	}
	for _, p := range programs {
		target := b.output
		if many {
			target = filepath.Join(b.output, p.Name())
		}
		if err := copyProgram(filepath.Join(stored, p.Name()), target); err != nil {
			return err
		}
	}
	return nil
}

func (b *build) build(real, cache, stored string) error {
	temporary, err := os.MkdirTemp(cache, "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temporary)
	cmd := exec.Command(real, append([]string{"build", "-o", temporary + "/"}, b.args[1:]...)...)
	if err := cmd.Run(); err != nil {
		return err
	}
	if err := os.Chmod(temporary, 0o755); err != nil {
		return err
	}
	if err := os.Rename(temporary, stored); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// copyProgram replaces target, which may be running.
func copyProgram(from, target string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(target+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		return err
	}
	return os.Rename(target+".new", target)
}
