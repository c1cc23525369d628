package tuning

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/allocnet/allocnet/internal/smallfile"
)

// allowlistFile contains one regular expression per line. The key of every
// sysctl must match one of them. If the file does not exist, all sysctls are
// allowed.
const (
	allowlistFile = "/etc/cni/tuning/allowlist.conf"
	maxAllowlist  = 1 << 20
)

// checkAllowed returns an error if a sysctl is not in the host's allowlist.
func checkAllowed(list []sysctl) error {
	if len(list) == 0 {
		return nil
	}
	data, err := smallfile.Read(allowlistFile, maxAllowlist)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read allowlist: %w", err)
	}
	patterns := parseAllowlist(string(data))
	for _, s := range list {
		ok, err := allowed(s.key, patterns)
		if err != nil {
			return fmt.Errorf("allowlist %s: %w", allowlistFile, err)
		}
		if !ok {
			return fmt.Errorf("sysctl %q is not in the allowlist %s", s.key, allowlistFile)
		}
	}
	return nil
}

func parseAllowlist(text string) []string {
	var patterns []string
	for line := range strings.SplitSeq(text, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			patterns = append(patterns, line)
		}
	}
	return patterns
}

// allowed reports whether a key matches a pattern. It does not compile the
// patterns after the first match.
func allowed(key string, patterns []string) (bool, error) {
	for _, p := range patterns {
		if found, err := regexp.MatchString(p, key); found || err != nil {
			return found, err
		}
	}
	return false, nil
}
