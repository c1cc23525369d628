package docs

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)|(?:src|srcset|href)="([^"]+)"`)
	heading = regexp.MustCompile(`^#+ +(.*)$`)
	noSlug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	// code is inline code, in which nothing is a link.
	code = regexp.MustCompile("`[^`]*`")
)

// slug returns the fragment of a heading.
func slug(text string) string {
	return strings.ReplaceAll(noSlug.ReplaceAllString(strings.ToLower(text), ""), " ", "-")
}

// TestLinks checks that relative links lead to existing files, and fragments to
// headings.
func TestLinks(t *testing.T) {
	total := 0
	for _, name := range tracked(t) {
		d := read(t, name)
		for _, n := range d.prose {
			for _, found := range link.FindAllStringSubmatch(code.ReplaceAllString(d.lines[n-1], ""), -1) {
				u, err := url.Parse(found[1] + found[2])
				require.NoError(t, err, "%s:%d", name, n)
				if u.Scheme != "" {
					continue
				}
				total++
				requireTarget(t, d, n, u)
			}
		}
	}
	require.Greater(t, total, 20, "links were looked at")
}

func requireTarget(t *testing.T, d *document, line int, u *url.URL) {
	t.Helper()
	target := d.name
	if u.Path != "" {
		target = filepath.Join(filepath.Dir(d.name), u.Path)
		_, err := os.Stat(filepath.Join(top, target))
		require.NoError(t, err, "%s:%d: link %s", d.name, line, u)
	}
	if u.Fragment == "" {
		return
	}
	other := read(t, target)
	for _, n := range other.prose {
		if found := heading.FindStringSubmatch(other.lines[n-1]); found != nil && slug(found[1]) == u.Fragment {
			return
		}
	}
	require.Failf(t, "no such heading", "%s:%d: link %s", d.name, line, u)
}

// TestEveryDocumentIsLinked checks that links lead from the README to every
// document.
func TestEveryDocumentIsLinked(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(top, "README.md"))
	require.NoError(t, err)
	for _, name := range documents(t)[1:] {
		require.Contains(t, string(readme), "]("+name+")")
	}
}
