package settings

import (
	"github.com/spf13/pflag"
)

// ConfigVariable is the variable that names the file if no flag does.
const ConfigVariable = Prefix + "CONFIG"

// Flags are the settings on a command line.
type Flags struct {
	given []*flag
}

// NewFlags adds a flag for every setting to set. The flags only store their values; Load
// validates them, so that it reports all errors together.
func NewFlags(set *pflag.FlagSet) *Flags {
	defaults := Default()
	f := &Flags{}
	for i := range table {
		s := &table[i]
		one := &flag{setting: s, shown: s.in(&defaults).get()}
		f.given = append(f.given, one)
		added := set.VarPF(one, s.flag(), "", s.usage)
		if s.in(&defaults).kind() == boolean {
			added.NoOptDefVal = "true"
		}
	}
	return f
}

func (f *Flags) apply(to *Settings) []error {
	var errs []error
	for _, one := range f.given {
		if one.texts == nil {
			continue
		}
		errs = append(errs, problems("flag --"+one.setting.flag(), 0, one.setting, one.setting.in(to).set(one.texts))...)
	}
	return errs
}

// flag is a pflag.Value that stores its text without validating it.
type flag struct {
	setting *setting
	shown   []string // the default
	texts   []string // nil where the flag was not given
}

func (f *flag) Set(text string) error {
	v := f.setting.in(new(Settings))
	if v.kind() != texts {
		f.texts = nil // the last value counts
	}
	f.texts = append(f.texts, v.split(text)...)
	if f.texts == nil {
		f.texts = []string{} // an empty list differs from a missing flag
	}
	return nil
}

func (f *flag) String() string {
	if f.setting == nil {
		return ""
	}
	return join(f.setting.in(new(Settings)).kind(), f.shown)
}

func (f *flag) Type() string {
	switch k := f.setting.in(new(Settings)).kind(); k {
	case boolean:
		return "bool"
	case number:
		return "number"
	case texts:
		return "list"
	default:
		return "text"
	}
}
