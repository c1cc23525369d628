package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/state/statedir"
	"github.com/allocnet/allocnet/internal/wire"
)

// Observer is configurator.Observer.
type Observer interface {
	Begin(ctx context.Context, s allocnet.Step) context.Context
	End(ctx context.Context, s allocnet.Step, err error)
}

// Journal is an Observer that records the operations which change an allocation, and
// those that fail. It is safe for concurrent use, also by several processes.
type Journal struct {
	file    string
	most    int64    // maximum size of both files
	next    Observer // gets everything as well; may be nil
	failed  func(error)
	program string
	now     func() time.Time
}

const (
	// maxText bounds an error text, maxSteps the steps of an entry, and maxForced its
	// leftovers.
	maxText, maxSteps, maxForced = 2048, 64, 64
)

// files returns the paths of the journal below a state directory: first the one to which
// entries are appended.
func files(stateDir string) (now, before string) {
	file := filepath.Join(stateDir, "journal.jsonl")
	return file, file + ".1"
}

// New returns the journal below a state directory. most is the maximum size in bytes.
// failed is called with the error of an entry that could not be written.
func New(stateDir string, most int64, next Observer, failed func(error)) *Journal {
	file, _ := files(stateDir)
	program := fmt.Sprintf("%s[%d]", filepath.Base(os.Args[0]), os.Getpid())
	return &Journal{file: file, most: most, next: next, failed: failed, program: program, now: time.Now}
}

// Forced records leftovers of an allocation that the operation in the context has removed by force.
// Without an operation, it does nothing.
func (j *Journal) Forced(ctx context.Context, id string, removed []allocnet.Leftover) {
	m, ok := ctx.Value(momentKey{}).(*moment)
	if !ok || m.whole == nil {
		return
	}
	m.whole.mu.Lock()
	defer m.whole.mu.Unlock()
	p := m.whole.part(id)
	p.ended = j.now()
	p.forced = append(p.forced, removed...)
	p.forced = p.forced[:min(len(p.forced), maxForced)]
}

// moment is the context of an operation or a step.
type moment struct {
	context.Context
	whole *operation // nil for a step outside an operation
	began time.Time
}

type momentKey struct{}

func (m *moment) Value(key any) any {
	if key == (momentKey{}) {
		return m
	}
	return m.Context.Value(key)
}

// operation is an operation that runs.
type operation struct {
	began time.Time

	mu    sync.Mutex
	parts map[string]*part // by the ID of the allocation
}

// part is what an operation does with one allocation.
type part struct {
	networks []string
	engine   allocnet.Engine
	steps    []allocnet.HistoryStep
	ended    time.Time
	failed   string // the last step that failed, and did not succeed since then
	err      error  // of that step
	changes  bool
	forced   []allocnet.Leftover
}

// Begin implements Observer.
func (j *Journal) Begin(ctx context.Context, s allocnet.Step) context.Context {
	if j.next != nil {
		ctx = j.next.Begin(ctx, s)
	}
	m := &moment{Context: ctx, began: j.now()}
	if s.Name == "" {
		m.whole = &operation{began: m.began, parts: map[string]*part{}}
	} else if outer, ok := ctx.Value(momentKey{}).(*moment); ok {
		m.whole = outer.whole
	}
	return m
}

// End implements Observer. At the end of an operation it writes the entries.
func (j *Journal) End(ctx context.Context, s allocnet.Step, err error) {
	if j.next != nil {
		j.next.End(ctx, s, err)
	}
	m, ok := ctx.Value(momentKey{}).(*moment)
	if !ok || m.whole == nil {
		return
	}
	now := j.now()
	if s.Name != "" {
		m.whole.add(s, m.began, now, err)
		return
	}
	if err := j.write(m.whole.entries(s, j.program, now, err)); err != nil {
		j.failed(fmt.Errorf("write journal %s: %w", j.file, err))
	}
}

// causeKey is the key of a string in a context.
type causeKey struct{}

// WithCause returns a context for operations that restore what a change of another program has removed.
func WithCause(ctx context.Context, change string) context.Context {
	return context.WithValue(ctx, causeKey{}, change)
}

// Cause returns the text of WithCause, or "".
func Cause(ctx context.Context) string {
	change, _ := ctx.Value(causeKey{}).(string)
	return change
}

// Add writes an entry about something other than an operation, that ends now.
func (j *Journal) Add(e allocnet.HistoryEntry, err error) {
	e.Time, e.Program, e.Error, e.Cause = j.now(), j.program, text(err), clip(e.Cause)
	if err != nil {
		e.Kind = wire.FromError(err).Kind
	}
	if err := j.write([]allocnet.HistoryEntry{e}); err != nil {
		j.failed(fmt.Errorf("write journal %s: %w", j.file, err))
	}
}

// passive are the steps that change nothing.
var passive = []string{allocnet.StepLock, allocnet.StepPlan, allocnet.StepCheck, allocnet.StepWait, allocnet.StepAudit}

// part returns the part of an allocation. The caller holds o.mu.
func (o *operation) part(id string) *part {
	p := o.parts[id]
	if p == nil {
		p = &part{}
		o.parts[id] = p
	}
	return p
}

// add records a step that ended.
func (o *operation) add(s allocnet.Step, began, now time.Time, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.part(s.ID)
	if len(s.Networks) > 0 {
		p.networks, p.engine = slices.Clone(s.Networks), s.Engine
	}
	p.ended, p.changes = now, p.changes || !slices.Contains(passive, s.Name)
	if err != nil || s.Name == p.failed {
		p.failed, p.err = s.Name, err
	}
	if len(p.steps) < maxSteps {
		p.steps = append(p.steps, allocnet.HistoryStep{
			Step: s.Name, At: began.Sub(o.began).Seconds(), Seconds: now.Sub(began).Seconds(), Error: text(err),
		})
	}
}

// entries returns the entries of an operation that ended: one for its allocation and for each
// other one of which it has removed leftovers, or one for each allocation that an operation on
// all of them changed.
func (o *operation) entries(s allocnet.Step, program string, now time.Time, err error) []allocnet.HistoryEntry {
	o.mu.Lock()
	defer o.mu.Unlock()
	var list []allocnet.HistoryEntry
	add := func(id string, p *part, ended time.Time, err error) {
		if id == "" || err == nil && !p.changes && len(p.forced) == 0 {
			return
		}
		e := allocnet.HistoryEntry{
			Time: ended, Program: program, Operation: s.Operation, ID: id, Networks: p.networks, Engine: p.engine,
			Seconds: ended.Sub(o.began).Seconds(), Error: text(err), Steps: p.steps, Forced: p.forced,
		}
		if err != nil {
			e.Kind = wire.FromError(err).Kind
		}
		list = append(list, e)
	}
	if s.ID != "" {
		p := o.parts[s.ID]
		if p == nil {
			p = &part{}
		}
		add(s.ID, p, now, err)
	}
	for id, p := range o.parts {
		if s.ID == "" || id != s.ID && len(p.forced) > 0 {
			add(id, p, p.ended, p.err)
		}
	}
	slices.SortFunc(list, func(a, b allocnet.HistoryEntry) int { return a.Time.Compare(b.Time) })
	return list
}

// text returns the text of an error without configurations, at most maxText bytes.
func text(err error) string {
	if err == nil {
		return ""
	}
	return clip(wire.FromError(err).Message)
}

// clip returns at most maxText bytes of a text.
func clip(t string) string {
	if len(t) <= maxText {
		return t
	}
	end := maxText
	for !utf8.RuneStart(t[end]) {
		end--
	}
	return t[:end] + "..."
}

// write appends entries.
func (j *Journal) write(entries []allocnet.HistoryEntry) error {
	var lines strings.Builder
	lines.WriteByte('\n') // ends a line that is incomplete because a disk was full
	for i := range entries {
		line, err := json.Marshal(&entries[i])
		if err != nil {
			return err
		}
		lines.Write(line)
		lines.WriteByte('\n')
	}
	if len(entries) == 0 {
		return nil
	}
	return j.append([]byte(lines.String()))
}

// append appends lines with one call, so that those of other processes do not get in
// between, and renames a file that is large enough. It writes nothing if another user may
// have made the file.
func (j *Journal) append(lines []byte) error {
	if err := statedir.CheckDirs(filepath.Dir(j.file)); err != nil {
		return err
	}
	const flags = unix.O_WRONLY | unix.O_APPEND | unix.O_CREAT | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := unix.Open(j.file, flags, 0o600)
	if errors.Is(err, unix.ENOENT) { // there is no state directory yet, and the operation made none
		return nil
	}
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err = statedir.CheckFile(fd, j.file); err == nil {
		_, err = unix.Write(fd, lines)
	}
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err == nil && st.Size >= j.most/2 {
		err = j.rotate(fd, &st)
	}
	return errors.Join(err, unix.Close(fd))
}

// rotate renames the open file, unless another process has just done so.
func (j *Journal) rotate(fd int, is *unix.Stat_t) error {
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil // another process is doing it
	}
	var now unix.Stat_t
	if err := unix.Lstat(j.file, &now); err != nil || now.Ino != is.Ino || now.Dev != is.Dev {
		return nil
	}
	return unix.Rename(j.file, j.file+".1")
}
