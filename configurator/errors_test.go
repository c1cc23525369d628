package configurator

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestJoinDistinct: an error is omitted only if the joined error already
// contains it, whatever the texts of the others are.
func TestJoinDistinct(t *testing.T) {
	list, open := errors.New("list rules"), errors.New("open table")
	typed := &LeftoverError{ID: "a", Leftovers: []Leftover{{Kind: "link", Object: "veth0"}}}
	quoting := errors.New("DEL: " + typed.Error())
	for name, c := range map[string]struct {
		errs []error
		want string
	}{
		"none":             {[]error{nil, nil}, ""},
		"the same":         {[]error{list, list}, "list rules"},
		"alike":            {[]error{list, errors.New("list rules")}, "list rules"},
		"wrapped already":  {[]error{fmt.Errorf("DEL: %w", list), list}, "DEL: list rules"},
		"in two joins":     {[]error{errors.Join(list, open), errors.Join(nil, errors.New("open table"))}, "list rules\nopen table"},
		"part of a text":   {[]error{errors.New("list rules of nat"), list}, "list rules of nat\nlist rules"},
		"typed and quoted": {[]error{quoting, typed}, quoting.Error() + "\n" + typed.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			err := joinDistinct(c.errs...)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, c.want)
			for _, e := range c.errs {
				if found := new(*LeftoverError); errors.As(e, found) {
					require.ErrorAs(t, err, found)
				}
			}
		})
	}
}
