package settings

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

const reference = "../../../../packaging/allocnetd.hcl"

// uncommented returns the reference file with all its settings set.
func uncommented(t testing.TB) []byte {
	t.Helper()
	data, err := os.ReadFile(reference)
	require.NoError(t, err)
	return regexp.MustCompile(`(?m)^( *)#(\S)`).ReplaceAll(data, []byte("$1$2"))
}

// TestReference compares packaging/allocnetd.hcl with the table: the file sets nothing,
// and its comments show all settings with their defaults.
func TestReference(t *testing.T) {
	s, err := Source{File: reference}.Load()
	require.NoError(t, err)
	require.Equal(t, Default(), s)

	data := uncommented(t)
	s = Settings{}
	require.Empty(t, parse(&s, reference, data))
	require.Equal(t, Default().Values(), s.Values())

	var keys, want []string
	for name := range body(t, data).Attributes {
		keys = append(keys, name)
	}
	for _, b := range body(t, data).Blocks {
		for name := range b.Body.Attributes {
			keys = append(keys, b.Type+"."+name)
		}
	}
	for key := range Default().Values() {
		want = append(want, key)
	}
	require.ElementsMatch(t, want, keys, "every setting is in the reference file")
}

// TestReferenceNamesRestarts checks that the comments name the settings that need a
// restart: above the setting, or above its block for the whole block.
func TestReferenceNamesRestarts(t *testing.T) {
	data, err := os.ReadFile(reference)
	require.NoError(t, err)
	restart := map[string]bool{}
	block, comment, blockComment := "", "", ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		opens, isBlock := strings.CutSuffix(line, " {")
		name, _, isSetting := strings.Cut(strings.TrimPrefix(line, "#"), " = ")
		switch {
		case strings.HasPrefix(line, "# "), line == "#":
			comment += line[1:]
		case isBlock:
			block, blockComment, comment = opens, comment, ""
		case isSetting:
			key := strings.TrimPrefix(block+"."+name, ".")
			restart[key] = regexp.MustCompile(`(need|needs) a +restart`).MatchString(strings.ToLower(blockComment + comment))
		case line == "}":
			block, blockComment, comment = "", "", ""
		default:
			comment = ""
		}
	}
	for i := range table {
		require.Equal(t, !table[i].live, restart[table[i].key()], table[i].key())
	}
}

func body(t *testing.T, data []byte) *hclsyntax.Body {
	t.Helper()
	file, diagnostics := hclsyntax.ParseConfig(data, "x", hcl.InitialPos)
	require.False(t, diagnostics.HasErrors())
	return file.Body.(*hclsyntax.Body)
}

// TestEverySetting sets each setting to its default by its flag and by its variable.
func TestEverySetting(t *testing.T) {
	defaults := Default()
	seen := map[string]bool{}
	for i := range table {
		s := &table[i]
		require.False(t, seen[s.flag()], s.flag())
		seen[s.flag()] = true
		require.NotEmpty(t, s.usage)
		v := s.in(&defaults)
		separator := ","
		if s.name == "plugin_dirs" {
			separator = ":"
		}
		given := strings.Join(v.get(), separator)

		set := pflag.NewFlagSet("x", pflag.ContinueOnError)
		flags := NewFlags(set)
		require.NoError(t, set.Parse([]string{"--" + s.flag() + "=" + given}))
		var got Settings
		require.Empty(t, flags.apply(&got), s.key())
		require.Equal(t, v.get(), s.in(&got).get(), s.key())

		got = Settings{}
		require.Empty(t, environment(&got, []string{s.variable() + "=" + given}, false), s.key())
		if given != "" {
			require.Equal(t, v.get(), s.in(&got).get(), s.key())
		}
	}
}

// FuzzParse looks for files that crash the parser, whose errors have no line, or whose
// settings cannot be written and read again.
func FuzzParse(f *testing.F) {
	f.Add(uncommented(f))
	for _, seed := range []string{
		`timeout = "1h0m0s"`, `limits { max_body = "1025B" }`, `log "a" { x = 1 }`, "engine = <<E\nexec\nE\n", `networks = ["a",]`,
		`retry { attempts = -1e9 }`, `retry { attempts = 1e99999999 }`, "a = [[[[{b = \"${c}\"}]]]]", `vendor_dir = "/\u0000"`, "\xef\xbb\xbflog {}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := Default()
		errs := parse(&s, "x.hcl", data)
		for _, err := range errs {
			require.Equal(t, "x.hcl", err.(*Error).Origin)
			require.Positive(t, err.(*Error).Line, err)
		}
		if len(errs) > 0 {
			return
		}
		again := Settings{}
		for i := range table {
			require.NoError(t, table[i].in(&again).set(table[i].in(&s).get()), table[i].key())
		}
		require.Equal(t, s.Values(), again.Values())
		require.Empty(t, parse(&again, "x.hcl", bytes.TrimSpace(data)), "without blanks around it as well")
	})
}
