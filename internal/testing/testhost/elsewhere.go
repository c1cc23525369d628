package testhost

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	privatehost "github.com/allocnet/allocnet/internal/privhost"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
)

// partVariable names the part of a test that the process runs.
const partVariable = "ALLOCNET_TEST_PART"

// slots bounds the number of concurrent processes. It exceeds the number of
// CPUs because the processes wait most of the time.
var slots = make(chan struct{}, 3*runtime.NumCPU())

// EachElsewhere runs a test once for each part; with -short, for one of them. Each part runs in its own
// process on its own private host, several at a time, in parallel with later
// tests. If a process skips its test, the part is skipped.
func EachElsewhere(t *testing.T, parts []string, test func(t *testing.T, part string)) {
	t.Helper()
	privhost.Require(t)
	if part := os.Getenv(partVariable); part != "" {
		require.Contains(t, parts, part)
		test(t, part)
		return
	}
	wait := make([]func(*testing.T), len(parts))
	for i, part := range parts {
		if wait[i] = skipInShort; skip.Has(t, i, len(parts)) {
			wait[i] = elsewhere(t, part)
		}
	}
	t.Parallel()
	for i, part := range parts {
		t.Run(part, wait[i])
	}
}

func skipInShort(t *testing.T) { skip.InShort(t) }

// elsewhere starts a process for one part of a test, and returns a function
// that waits for its result.
func elsewhere(t *testing.T, part string) (wait func(t *testing.T)) {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=4h",
		fmt.Sprintf("-test.short=%t", testing.Short()))
	cmd.Env = append(privatehost.Another(os.Environ()), partVariable+"="+part)
	of := t.Name()
	var out []byte
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		slots <- struct{}{}
		defer func() { <-slots }()
		out, err = cmd.CombinedOutput()
	}()
	return func(t *testing.T) {
		<-ended
		require.NoError(t, err, "%s", out)
		if bytes.Contains(out, []byte("--- SKIP: ")) {
			t.Skipf("%s", out)
		}
		require.Contains(t, string(out), "--- PASS: "+of+" (", "the process has run the test")
		t.Logf("%s user and %s system time\n%s", cmd.ProcessState.UserTime(), cmd.ProcessState.SystemTime(), out)
	}
}
