package settings

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// DefaultFile is read if no other file is named and it exists.
const DefaultFile = "/etc/allocnet/allocnetd.hcl"

// Source describes where settings come from. Its zero value reads only DefaultFile.
type Source struct {
	File    string   // must exist; "" for DefaultFile, which is optional
	Environ []string // as os.Environ returns it
	Flags   *Flags   // nil for none
	// Wary refuses a file that users other than root and this process's user
	// can write or replace. It follows symlinks, and checks the directory of
	// each. Set it if the path comes from a user who may only use the daemon.
	Wary bool
	// Foreign ignores variables with the Prefix that are not settings. Set it if the
	// environment belongs to another program.
	Foreign bool
}

// Path returns the file that is read.
func (s Source) Path() string {
	if s.File == "" {
		return DefaultFile
	}
	return s.File
}

// Settled returns a source that requires the DefaultFile if that file exists and no other
// one is named. A daemon that began with the file must not take the defaults when the
// file is gone.
func (s Source) Settled() Source {
	if s.File == "" {
		if _, err := os.Stat(DefaultFile); err == nil {
			s.File = DefaultFile
		}
	}
	return s
}

// Load reads the settings. The error joins an *Error for each problem; see [Errors].
func (s Source) Load() (Settings, error) {
	loaded := Default()
	errs := s.file(&loaded)
	errs = append(errs, environment(&loaded, s.Environ, s.Foreign)...)
	if s.Flags != nil {
		errs = append(errs, s.Flags.apply(&loaded)...)
	}
	if len(errs) == 0 && !loaded.Policy.Policy.IsEmpty() && loaded.Engine == configurator.EngineExec {
		errs = append(errs, &Error{Origin: s.Path(), Key: "policy", Problem: conflist.ErrPolicyOfBinaries.Error()})
	}
	return loaded, errors.Join(errs...)
}

// maxFile is the maximum size of a file. It bounds the recursion of the parser.
const maxFile = 256 << 10

func (s Source) file(to *Settings) []error {
	data, err := contents(s.Path(), s.Wary)
	switch {
	case errors.Is(err, fs.ErrNotExist) && s.File == "":
		return nil
	case err != nil:
		return []error{&Error{Origin: s.Path(), Problem: err.Error()}}
	}
	return parse(to, s.Path(), data)
}

// contents reads a file. Its error continues a sentence that begins with the file's name.
func contents(path string, wary bool) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // does not block on a pipe
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot be read: %w", err)
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	case info.Size() > maxFile:
		return nil, fmt.Errorf("is larger than %s", formatSize(maxFile))
	case wary && !private(info):
		return nil, errors.New("can be written by other users: chown it to root and chmod go-w")
	}
	if wary {
		if err := checkDirs(path); err != nil {
			return nil, err
		}
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	return data, nil
}

// private reports whether only root and this process's user can write a file,
// or remove and rename the files of theirs in a directory.
func private(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return false
	}
	return info.Mode()&0o022 == 0 || info.IsDir() && info.Mode()&fs.ModeSticky != 0
}

// maxLinks is the number of symlinks that the kernel follows in one path.
const maxLinks = 40

// checkDirs returns an error if other users can replace a file, because they
// can write the directory of the file, or of a symlink that leads to it.
func checkDirs(path string) error {
	for range maxLinks {
		dir, name := filepath.Split(path)
		dir, err := filepath.EvalSymlinks(cmp.Or(dir, "."))
		if err != nil {
			return fmt.Errorf("cannot be read: %w", err)
		}
		info, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("cannot be read: %w", err)
		}
		if !private(info) {
			return fmt.Errorf("can be replaced by other users, who can write %q: chown that directory to root and chmod go-w", dir)
		}
		target, err := os.Readlink(filepath.Join(dir, name))
		if err != nil { // the file itself
			return nil
		}
		if path = target; !filepath.IsAbs(target) {
			path = dir + "/" + target // not cleaned: a part of it may be a symlink
		}
	}
	return errors.New("has too many symlinks")
}

// ofKubernetes matches the variables that Kubernetes sets in all pods of a namespace for
// a service that is called allocnetd or allocnetd-something.
var ofKubernetes = regexp.MustCompile(`^` + Prefix + `(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// environment applies the variables with the Prefix. An empty variable counts as unset.
func environment(to *Settings, environ []string, foreign bool) []error {
	var errs []error
	for _, entry := range environ {
		name, text, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, Prefix) || text == "" || name == ConfigVariable {
			continue
		}
		origin := "environment variable " + name
		i := slices.IndexFunc(table, func(s setting) bool { return s.variable() == name })
		switch {
		case i >= 0:
			v := table[i].in(to)
			errs = append(errs, problems(origin, 0, &table[i], v.set(v.split(text)))...)
		case !foreign && !ofKubernetes.MatchString(name):
			errs = append(errs, &Error{Origin: origin, Problem: "there is no such setting: " + knownVariable(name)})
		}
	}
	return errs
}

func knownVariable(name string) string {
	var all []string
	for i := range table {
		all = append(all, table[i].variable())
	}
	if near := nearest(name, all); near != "" {
		return "did you mean " + near + "?"
	}
	return "unset it"
}

// problems returns an *Error for each line of an error of set.
func problems(origin string, line int, s *setting, err error) []error {
	if err == nil {
		return nil
	}
	var errs []error
	for _, problem := range strings.Split(err.Error(), "\n") {
		errs = append(errs, &Error{Origin: origin, Line: line, Key: s.key(), Problem: problem})
	}
	return errs
}
