package shard

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// modeVariable is an environment variable that makes the test binary run its tests in so many processes.
const modeVariable = "SHARD_TEST_PROCESSES"

func TestMain(m *testing.M) {
	var n int
	if _, err := fmt.Sscan(os.Getenv(modeVariable), &n); err != nil {
		os.Exit(m.Run())
	}
	os.Exit(Main(m, n, func() int {
		fmt.Println("process", os.Getpid())
		return m.Run()
	}))
}

// inShards reports whether the test is one of those in the processes that runTests starts.
func inShards(t *testing.T) bool {
	if os.Getenv(modeVariable) == "" {
		return false
	}
	if os.Getenv("SHARD_TEST_FAIL") == t.Name() {
		t.Error("told to fail")
	}
	if os.Getenv("SHARD_TEST_KILL") == t.Name() {
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGKILL))
	}
	return true
}

// runTests runs the tests of this package in n processes, with more variables and arguments.
func runTests(t *testing.T, n int, env []string, args ...string) (out string, status int) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), fmt.Sprint(modeVariable, "=", n))
	cmd.Env = append(cmd.Env, env...)
	data, _ := cmd.CombinedOutput()
	require.NotNil(t, cmd.ProcessState)
	return string(data), cmd.ProcessState.ExitCode()
}

var ran = regexp.MustCompile(`(?m)^\W*--- (?:PASS|FAIL): (\w+) \(`)

func namesOf(out string) (names []string) {
	for _, m := range ran.FindAllStringSubmatch(out, -1) {
		names = append(names, m[1])
	}
	return names
}

// TestProcesses: each test runs once, the tests of a process are reported together, and the last line says whether
// all have passed.
func TestProcesses(t *testing.T) {
	if inShards(t) {
		return
	}
	all := []string{"TestProcesses", "TestOneProcess", "TestCutPassed", "FuzzSplit", "Example_split"}
	out, status := runTests(t, 3, nil, "-test.v", "-test.count=1")
	require.Zero(t, status, out)
	require.ElementsMatch(t, all, namesOf(out))
	require.Equal(t, 3, strings.Count(out, "process "))
	require.Equal(t, 1, strings.Count(out, "\nPASS\n"))
	require.True(t, strings.HasSuffix(out, "\nPASS\n"), out)
	parts := strings.Split(out, "process ")
	require.ElementsMatch(t, []string{"TestProcesses", "FuzzSplit"}, namesOf(parts[1]), "the first and the fourth")

	out, status = runTests(t, 3, []string{"SHARD_TEST_FAIL=TestOneProcess"}, "-test.v")
	require.Equal(t, 1, status)
	require.ElementsMatch(t, all, namesOf(out))
	require.Contains(t, out, "told to fail")
	require.Contains(t, out, "\nFAIL\n")
	require.NotContains(t, out, "\nPASS\n")

	out, status = runTests(t, 3, []string{"SHARD_TEST_KILL=TestOneProcess"}, "-test.v")
	require.Equal(t, 1, status)
	require.Contains(t, out, "signal: killed\nFAIL\n")
	require.Contains(t, namesOf(out), "TestProcesses")

	out, status = runTests(t, 3, nil, "-test.v=test2json")
	require.Zero(t, status, out)
	require.Equal(t, 1, strings.Count(out, "\x16PASS\n"))
	require.True(t, strings.HasSuffix(out, "\x16PASS\n"), out)
}

// TestOneProcess: with other flags, one process runs the tests.
func TestOneProcess(t *testing.T) {
	if inShards(t) {
		return
	}
	out, status := runTests(t, 3, nil, "-test.v", "-test.run=FuzzSplit|TestCutPassed")
	require.Zero(t, status, out)
	require.Equal(t, []string{"TestCutPassed", "FuzzSplit"}, namesOf(out))
	require.Equal(t, 1, strings.Count(out, "process "))
	out, status = runTests(t, 3, nil, "-test.cpuprofile="+t.TempDir()+"/profile")
	require.Zero(t, status, out)
	require.Equal(t, 1, strings.Count(out, "process "))
	out, status = runTests(t, 1, nil)
	require.Zero(t, status, out)
	require.Equal(t, 1, strings.Count(out, "process "))
}

func TestCutPassed(t *testing.T) {
	if inShards(t) {
		return
	}
	for out, want := range map[string][2]string{
		"":                      {"", "PASS\n"},
		"PASS\n":                {"", "PASS\n"},
		"a\nPASS\n":             {"a\n", "PASS\n"},
		"a\n\x16PASS\n":         {"a\n", "\x16PASS\n"},
		"a\nPASS\nafterwards\n": {"a\nPASS\nafterwards\n", "PASS\n"},
	} {
		rest, passed := cutPassed([]byte(out))
		require.Equal(t, want, [2]string{string(rest), passed})
	}
}

// FuzzSplit: each name is in one shard, and no shard has many more than another.
func FuzzSplit(f *testing.F) {
	f.Add(uint8(7), uint8(3))
	f.Fuzz(func(t *testing.T, names, n uint8) {
		var all, dealt []string
		for i := range names {
			all = append(all, fmt.Sprint(i))
		}
		shards := split(all, 1+int(n))
		for _, shard := range shards {
			require.LessOrEqual(t, len(shards[0])-len(shard), 1)
			dealt = append(dealt, shard...)
		}
		require.ElementsMatch(t, all, dealt)
	})
}

func Example_split() {
	fmt.Println(split([]string{"TestA", "TestB", "TestC"}, 2))
	// Output: [[TestA TestC] [TestB]]
}
