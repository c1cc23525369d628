package sdk

import (
	"fmt"
	"io"
	"strings"
)

// Logger logs the messages of an operation: a text with pairs of keys and
// values. An hclog.Logger is a Logger.
type Logger interface {
	Warn(message string, pairs ...any)
	Error(message string, pairs ...any)
}

// Lines returns a Logger that writes to the stderr of a plugin binary.
func Lines(plugin string, stderr io.Writer) Logger { return lines{name: plugin, to: stderr} }

// lines writes one line per message to stderr, as plugin binaries do.
type lines struct {
	name string
	to   io.Writer
}

func (l lines) Warn(message string, pairs ...any)  { l.write("WARN", message, pairs) }
func (l lines) Error(message string, pairs ...any) { l.write("ERROR", message, pairs) }

func (l lines) write(level, message string, pairs []any) {
	var line strings.Builder
	fmt.Fprintf(&line, "[%s] %s: %s", level, l.name, message)
	for i := 0; i+1 < len(pairs); i += 2 {
		fmt.Fprintf(&line, " %v=%q", pairs[i], fmt.Sprint(pairs[i+1]))
	}
	// An error is ignored because there is no other place to log it.
	_, _ = fmt.Fprintln(l.to, line.String())
}
