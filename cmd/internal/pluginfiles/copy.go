package pluginfiles

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// cniName is the program of the plugin of type cniType, which runtimes call through
// a link of that name. cniShimName is the program beside it that takes less time.
const (
	cniType     = "allocnet"
	cniName     = "allocnet-cni"
	cniShimName = "allocnet-cni-shim"
)

// CopyPrograms copies the programs that runtimes start into a directory, and creates
// the link of the plugin of type allocnet. The links of l then lead to the copies.
// Each file is replaced by a rename, programs before the link to them.
func (l *Links) CopyPrograms(to string) error {
	to, err := filepath.Abs(to)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("copy programs: %w", err)
	}
	bin := filepath.Dir(l.Program)
	lib := filepath.Join(filepath.Dir(bin), "lib", "allocnet")
	for _, from := range []string{l.Program, filepath.Join(bin, ShimName), filepath.Join(lib, cniName), filepath.Join(lib, cniShimName)} {
		if err := copyProgram(from, filepath.Join(to, filepath.Base(from))); err != nil {
			return err
		}
	}
	l.Program = filepath.Join(to, ProgramName)
	link := l.path(cniType)
	if info, err := os.Lstat(link); err == nil && info.Mode().Type() != fs.ModeSymlink {
		return &Error{fmt.Errorf("%q: %w", link, ErrForeign), "remove it if allocnet is to be installed in its place"}
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return renameio.Symlink(filepath.Join(to, cniShimName), link)
}

// copyProgram replaces a program by a copy of another one.
func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy program: %w", err)
	}
	defer in.Close()
	out, err := renameio.NewPendingFile(to, renameio.WithTempDir(filepath.Dir(to)), renameio.WithStaticPermissions(0o755))
	if err != nil {
		return fmt.Errorf("copy program to %q: %w", to, err)
	}
	defer func() { _ = out.Cleanup() }()
	if _, err := io.Copy(out, in); err != nil {
		return fmt.Errorf("copy program to %q: %w", to, err)
	}
	if err := out.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("copy program to %q: %w", to, err)
	}
	return nil
}
