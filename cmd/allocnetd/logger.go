package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/hashicorp/go-hclog"

	"github.com/allocnet/allocnet/cmd/internal/hoststatus"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/redact"
)

// newLogger returns a logger that writes to a file or the journal. For the journal each
// line begins with its level and has no time, which the journal adds.
func newLogger(s *settings.Log, to io.Writer, journal bool) hclog.Logger {
	o := &hclog.LoggerOptions{Name: "allocnetd", Level: s.Level, JSONFormat: s.JSON, Output: to}
	if journal {
		o.DisableTime = true
		o.Output = hclog.NewLeveledWriter(prefixed{to, 6}, map[hclog.Level]io.Writer{
			hclog.Trace: prefixed{to, 7}, hclog.Debug: prefixed{to, 7}, hclog.Warn: prefixed{to, 4}, hclog.Error: prefixed{to, 3},
		})
	}
	return hclog.New(o)
}

// prefixed is a writer that begins each line with a level of syslog (sd-daemon(3)).
type prefixed struct {
	to    io.Writer
	level int
}

func (p prefixed) Write(text []byte) (int, error) {
	var all strings.Builder
	for line := range strings.Lines(string(text)) {
		fmt.Fprintf(&all, "<%d>%s", p.level, line)
	}
	if _, err := io.WriteString(p.to, all.String()); err != nil {
		return 0, err
	}
	return len(text), nil
}

// toJournal reports whether a writer is the journal's stream, which JOURNAL_STREAM
// identifies by device and inode (systemd.exec(5)).
func toJournal(to io.Writer, getenv func(string) string) bool {
	f, ok := to.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && getenv("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)
}

// failures is an Observer that also logs failed operations and notes them in recent.
type failures struct {
	configurator.Observer
	logger hclog.Logger
	recent *hoststatus.Recent
}

func (f failures) End(ctx context.Context, s configurator.Step, err error) {
	f.Observer.End(ctx, s, err)
	if err != nil && s.Name == "" {
		f.recent.Failed(s.Operation, s.ID, err)
		f.logger.Warn("operation failed", "operation", s.Operation, "alloc", s.ID, "networks", s.Networks, "error", redact.Text(err.Error()))
	}
}
