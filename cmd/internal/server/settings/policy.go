package settings

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/allocnet/allocnet/cmd/internal/netpolicy"
	"github.com/allocnet/allocnet/policy"
)

// policyValue is a list of presets, of one file, or of netpolicy.None. The file is read with the
// setting.
type policyValue struct{ to *Policy }

func (v policyValue) set(texts []string) error {
	p := Policy{Sources: texts}
	if err := unlike(texts); err != nil {
		return err
	}
	if slices.Equal(texts, []string{netpolicy.None}) {
		p.Policy, texts = &policy.Policy{}, nil
	}
	for _, t := range texts {
		if filepath.IsAbs(t) {
			return v.setFile(texts)
		}
		switch {
		case t == netpolicy.None:
			return errors.New(`give "none" alone, or presets`)
		case !netpolicy.IsPreset(t):
			return fmt.Errorf("%q is neither the absolute path of a file nor a preset; the presets are %s", t, netpolicy.PresetNames())
		}
		if p.Policy == nil {
			p.Policy = &policy.Policy{}
		}
		p.Policy.Presets = append(p.Policy.Presets, policy.Preset(t))
	}
	*v.to = p
	return nil
}

func (v policyValue) setFile(texts []string) error {
	if len(texts) != 1 {
		return errors.New("give presets or one file: a file can name presets as well")
	}
	data, err := contents(texts[0], true)
	if err != nil {
		return fmt.Errorf("%q %w", texts[0], err)
	}
	p, err := policy.Parse(data)
	if err != nil {
		return fmt.Errorf("%q is not a network policy: %w", texts[0], err)
	}
	*v.to = Policy{Sources: texts, Policy: p}
	return nil
}

func (v policyValue) get() []string { return append([]string{}, v.to.Sources...) }
func (v policyValue) kind() kind    { return texts }

func (v policyValue) split(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}
