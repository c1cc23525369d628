package settings

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// DefaultFile is read where no other file is named, if it is there.
const DefaultFile = "/etc/allocnet/allocnetd.hcl"

// Source is where settings come from. Its zero value is DefaultFile alone.
type Source struct {
	File    string   // must exist; "" for DefaultFile, which need not
	Environ []string // as os.Environ returns it
	Flags   *Flags   // nil for none
	// Wary refuses a file that others than root and this process's user can write:
	// who named it may be allowed to use the daemon, and no more.
	Wary bool
	// Foreign passes over variables with the Prefix that are no settings: the
	// environment is somebody else's, who may call other things so.
	Foreign bool
}

// Path is the file that is read.
func (s Source) Path() string {
	if s.File == "" {
		return DefaultFile
	}
	return s.File
}

// Load reads the settings anew. The error holds everything that is wrong, each
// thing as an *Error; see [Errors].
func (s Source) Load() (Settings, error) {
	loaded := Default()
	errs := s.file(&loaded)
	errs = append(errs, environment(&loaded, s.Environ, s.Foreign)...)
	if s.Flags != nil {
		errs = append(errs, s.Flags.apply(&loaded)...)
	}
	return loaded, errors.Join(errs...)
}

// maxFile bounds what the parser, which is recursive, is given.
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

// contents are those of a file. The error goes on from its name.
func contents(path string, wary bool) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // does not wait for a pipe
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot be read: %w", err)
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a file")
	case info.Size() > maxFile:
		return nil, fmt.Errorf("is larger than %s", formatSize(maxFile))
	case wary && !private(info):
		return nil, errors.New("can be written by others: chown it to root and chmod go-w")
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	return data, nil
}

func private(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && (stat.Uid == 0 || int(stat.Uid) == os.Geteuid()) && info.Mode()&0o022 == 0
}

// ofKubernetes are the variables that Kubernetes gives all pods in the namespace of a
// service, here one that is called allocnetd or allocnetd-something.
var ofKubernetes = regexp.MustCompile(`^` + Prefix + `(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// environment applies the variables with the Prefix. An empty one counts as one
// that is not set.
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

// problems are what is wrong with a value, one by one.
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
