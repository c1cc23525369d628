package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// DefaultFile is read where no other file is named, if it is there.
const DefaultFile = "/etc/allocnet/allocnetd.hcl"

// Source is where settings come from. Its zero value is DefaultFile alone.
type Source struct {
	File    string   // must exist; "" for DefaultFile, which need not
	Environ []string // as os.Environ returns it
	Flags   *Flags   // nil for none
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
	errs = append(errs, environment(&loaded, s.Environ)...)
	if s.Flags != nil {
		errs = append(errs, s.Flags.apply(&loaded)...)
	}
	return loaded, errors.Join(errs...)
}

// maxFile bounds what the parser, which is recursive, is given.
const maxFile = 256 << 10

func (s Source) file(to *Settings) []error {
	problem := func(p string, args ...any) []error {
		return []error{&Error{Origin: s.Path(), Problem: fmt.Sprintf(p, args...)}}
	}
	info, err := os.Stat(s.Path())
	switch {
	case errors.Is(err, fs.ErrNotExist) && s.File == "":
		return nil
	case err != nil:
		return problem("cannot be read: %v", err)
	case !info.Mode().IsRegular():
		return problem("is not a file")
	case info.Size() > maxFile:
		return problem("is larger than %s", formatSize(maxFile))
	}
	data, err := os.ReadFile(s.Path())
	if err != nil {
		return problem("cannot be read: %v", err)
	}
	return parse(to, s.Path(), data)
}

// environment applies the variables with the Prefix. An empty one counts as one
// that is not set.
func environment(to *Settings, environ []string) []error {
	var errs []error
	for _, entry := range environ {
		name, text, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, Prefix) || text == "" || name == ConfigVariable {
			continue
		}
		origin := "environment variable " + name
		i := slices.IndexFunc(table, func(s setting) bool { return s.variable() == name })
		if i < 0 {
			errs = append(errs, &Error{Origin: origin, Problem: "there is no such setting: " + knownVariable(name)})
			continue
		}
		v := table[i].in(to)
		errs = append(errs, problems(origin, 0, &table[i], v.set(v.split(text)))...)
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
