package docs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testhost"
)

// notRun is the number of blocks in all documents that are not run. A new one
// needs a reason in the document and a higher number here.
const notRun = 14

// TestCommands runs the commands in the documents.
func TestCommands(t *testing.T) {
	privhost.Require(t, "iptables", "ip6tables", "nft", "ip", "curl", "jq", "pkill", "timeout")
	_, err := documented()
	require.NoError(t, err)
	var names []string
	leftOut := 0
	for _, name := range documents(t) {
		d, runs := read(t, name), false
		for _, b := range d.blocks {
			runs = runs || b.runs()
			if b.notRun != "" {
				leftOut++
				t.Logf("%s:%d is not run: %s", name, b.line, b.notRun)
			}
		}
		if runs {
			names = append(names, name)
		}
	}
	require.Equal(t, notRun, leftOut, "blocks that are not run")
	require.NotEmpty(t, names)
	testhost.EachElsewhere(t, names, runDocument)
}

func runDocument(t *testing.T, name string) {
	h := newHost(t)
	d := read(t, name)
	for i := range d.blocks {
		require.NoError(t, h.do(&d.blocks[i]), "%s:%d", name, d.blocks[i].line)
	}
}

// host is the private host of a document.
type host struct {
	bin, dir string
	log      func(format string, args ...any)
}

func newHost(t *testing.T) *host {
	bin, err := documented()
	require.NoError(t, err)
	dir, err := filepath.Abs(top)
	require.NoError(t, err)
	h := &host{bin: bin, dir: dir, log: t.Logf}
	require.NoError(t, h.do(&block{language: "sh", lines: []string{
		"mkdir -p /etc/cni/net.d /opt/cni/bin", "ln -s " + bin + "/allocnet-cni-shim /opt/cni/bin/allocnet",
	}}))
	t.Cleanup(func() {
		require.NoError(t, h.do(&block{language: "sh", lines: []string{"systemctl stop allocnetd.socket allocnetd.service"}}))
	})
	return h
}

// do runs a block, or writes its file.
func (h *host) do(b *block) error {
	switch {
	case b.file != "":
		if err := os.MkdirAll(filepath.Dir(b.file), 0o755); err != nil {
			return err
		}
		return os.WriteFile(b.file, []byte(b.text()), 0o644)
	case !b.runs():
		return nil
	case b.language == "sh":
		out, code, err := h.shell("set -eu\n" + b.text())
		return checked(b.text(), out, code, b.exit, err)
	}
	steps, err := parseConsole(b.lines)
	for i := range steps {
		want := 0
		if i == len(steps)-1 {
			want = b.exit
		}
		out, code, runErr := h.shell(steps[i].command)
		if runErr = checked(steps[i].command, out, code, want, runErr); runErr != nil {
			return runErr
		}
		if !steps[i].shows(out) {
			return fmt.Errorf("$ %s\nprints:\n%s\nthe document has:\n%s", steps[i].command, out, strings.Join(steps[i].output, "\n"))
		}
	}
	return err
}

// shell runs a script in the directory of the source, and returns its output
// and exit code.
func (h *host) shell(script string) (out string, code int, err error) {
	c := exec.Command("bash", "-c", script)
	c.Dir = h.dir
	c.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		// Below make, another make prints the directories that it enters.
		return strings.HasPrefix(v, "CNI_PATH=") || strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=") || strings.HasPrefix(v, "ALLOCNET_") && !strings.HasPrefix(v, "ALLOCNET_PRIVATE_HOST=")
	}), "PATH="+h.bin+":"+os.Getenv("PATH")+":/usr/sbin:/sbin", "NO_COLOR=1")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	printed, err := os.CreateTemp("", "allocnet-docs-output-") // reading a pipe would wait for the daemon
	if err != nil {
		return "", 0, err
	}
	defer os.Remove(printed.Name())
	defer printed.Close()
	c.Stdout, c.Stderr = printed, printed
	err = c.Run()
	data, readErr := os.ReadFile(printed.Name())
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = nil
	}
	h.log("$ %s\n%s", script, data)
	return string(data), c.ProcessState.ExitCode(), errors.Join(err, readErr)
}

// checked returns an error if a command did not end as the document says.
func checked(command, out string, code, want int, err error) error {
	if err == nil && code != want {
		err = fmt.Errorf("exit code %d instead of %d", code, want)
	}
	if err != nil {
		return fmt.Errorf("$ %s\n%w:\n%s", command, err, out)
	}
	return nil
}

// step is a command of a console block and its output.
type step struct {
	command string
	output  []string
}

// parseConsole parses a console block. A backslash continues a command on the
// next line.
func parseConsole(lines []string) (steps []step, err error) {
	for _, line := range lines {
		command, is := strings.CutPrefix(line, "$ ")
		last := len(steps) - 1
		switch {
		case is:
			steps = append(steps, step{command: command})
		case last < 0:
			return nil, fmt.Errorf("output without a command: %q", line)
		case strings.HasSuffix(steps[last].command, `\`):
			steps[last].command += "\n" + line
		default:
			steps[last].output = append(steps[last].output, line)
		}
	}
	if len(steps) == 0 {
		err = errors.New("no command")
	}
	return steps, err
}

// shows reports whether output matches the document.
func (s *step) shows(out string) bool {
	if len(s.output) == 0 {
		return true
	}
	var pattern strings.Builder
	pattern.WriteString("^")
	for _, line := range s.output {
		if strings.TrimSpace(line) == "..." {
			pattern.WriteString(`(?:.*\n)*?`)
			continue
		}
		for i, part := range strings.Split(line, "...") {
			if i > 0 {
				pattern.WriteString(".*")
			}
			for j, word := range strings.Fields(part) {
				if j > 0 {
					pattern.WriteString(`[ \t]+`)
				}
				pattern.WriteString(`[ \t]*` + regexp.QuoteMeta(word) + `[ \t]*`)
			}
		}
		pattern.WriteString(`\n`)
	}
	pattern.WriteString("$")
	return regexp.MustCompile(pattern.String()).MatchString(strings.TrimRight(out, "\n") + "\n")
}

// TestShows checks which parts of an output a document may omit.
func TestShows(t *testing.T) {
	shown := func(shown, out string) bool {
		steps, err := parseConsole(strings.Split("$ x\n"+shown, "\n"))
		require.NoError(t, err)
		return steps[0].shows(out)
	}
	for _, same := range [][2]string{
		{"a b", "a  b\n"}, {"a ... c", "a b c"}, {"a...", "abc"}, {"a\n...\nc", "a\nb\nb\nc"}, {"...\nc", "c"}, {"a\n...", "a"}, {"a\n\nb", "a\n\nb"}, {"a.b", "a.b"},
	} {
		require.True(t, shown(same[0], same[1]), "%q", same)
	}
	for _, other := range [][2]string{{"a", "ab"}, {"a b", "ab"}, {"a", "a\nb"}, {"a\nb", "a"}, {"a.b", "axb"}, {"a ... c", "a b d"}} {
		require.False(t, shown(other[0], other[1]), "%q", other)
	}
}

// TestWrongCommand: a document with a wrong command, output or exit code fails.
func TestWrongCommand(t *testing.T) {
	privhost.Require(t)
	bin, err := documented()
	require.NoError(t, err)
	h := &host{bin: bin, dir: top, log: t.Logf}
	for name, b := range map[string]block{
		"no such flag": {language: "console", lines: []string{"$ allocnet ls --no-such-flag"}},
		"no such file": {language: "sh", lines: []string{"cat /no/such/file", "true"}},
		"output":       {language: "console", lines: []string{"$ allocnet plugins list", "bridge"}},
		"exit code":    {language: "console", lines: []string{"$ allocnet plugins list"}, exit: 3},
		"no command":   {language: "console", lines: []string{"allocnet ls"}},
	} {
		require.Error(t, h.do(&b), name)
	}
	require.NoError(t, h.do(&block{language: "console", lines: []string{"$ allocnet plugins list", "...", "bridge", "..."}}))
}
