package telemetry

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
)

// maxSteps bounds the steps of one event: gc and repair have some per allocation.
const maxSteps = 64

// observer is a Telemetry as the configurator sees it.
type observer struct{ *Telemetry }

// operation is what its steps have in common.
type operation struct {
	id    string
	began time.Time

	mu      sync.Mutex
	steps   []client.StepTime
	omitted int
}

// moment is the context of an operation or a step: one allocation instead of one
// for every value.
type moment struct {
	context.Context
	whole *operation // nil for a step outside of any
	began time.Time
	span  trace.Span // nil: none
}

type momentKey struct{}

func (m *moment) Value(key any) any {
	if key == (momentKey{}) {
		return m
	}
	return m.Context.Value(key)
}

// Begin notes the time.
func (o observer) Begin(ctx context.Context, s configurator.Step) context.Context {
	m := &moment{Context: ctx, began: o.now()}
	if s.Name == "" {
		m.whole = &operation{id: s.ID, began: m.began, steps: make([]client.StepTime, 0, 8)}
	} else if outer, ok := ctx.Value(momentKey{}).(*moment); ok {
		m.whole = outer.whole
	}
	if o.spans != nil {
		m.Context, m.span = o.spans.begin(ctx, s, m.began)
	}
	return m
}

// End counts. That of an operation publishes it with its steps.
func (o observer) End(ctx context.Context, s configurator.Step, err error) {
	m, ok := ctx.Value(momentKey{}).(*moment)
	if !ok {
		return // Begin was not called
	}
	now := o.now()
	took, outcome := now.Sub(m.began), outcomeOf(err)
	if m.span != nil {
		endSpan(m.span, s, outcome, errorText(err, maxErrorText), now)
	}
	if s.Name != "" {
		o.metrics.step(s, took, err)
		m.whole.add(s, m.began, took, err)
		return
	}
	o.metrics.operation(s, took, outcome)
	s.Networks, s.Args = slices.Clone(s.Networks), boundArgs(s.Args)
	d := client.Operation{Step: s, Seconds: took.Seconds(), Outcome: string(outcome), Error: errorText(err, maxErrorText)}
	d.Steps, d.Omitted = m.whole.end()
	o.events.publish(client.TypeOperation, d)
}

// maxArgs bounds the CNI_ARGS of one event, in bytes: an allocation may have 128 KiB.
const maxArgs = 1024

// boundArgs are as many as there is room for, the shortest first.
func boundArgs(args map[string]string) map[string]string {
	size := func(name string) int { return len(name) + len(args[name]) }
	all := 0
	for name := range args {
		all += size(name)
	}
	if all <= maxArgs {
		return args
	}
	names := slices.Sorted(maps.Keys(args))
	slices.SortStableFunc(names, func(a, b string) int { return size(a) - size(b) })
	kept, left := map[string]string{}, maxArgs
	for _, name := range names {
		if left -= size(name); left < 0 {
			break
		}
		kept[name] = args[name]
	}
	return kept
}

// add notes a step that ended.
func (p *operation) add(s configurator.Step, began time.Time, took time.Duration, err error) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.steps) == maxSteps {
		p.omitted++
		return
	}
	t := client.StepTime{
		Step: s.Name, At: began.Sub(p.began).Seconds(), Seconds: took.Seconds(),
		Outcome: string(outcomeOf(err)), Error: errorText(err, maxStepErrorText),
	}
	if s.ID != p.id {
		t.ID = s.ID
	}
	p.steps = append(p.steps, t)
}

// end gives the steps away. One that is added later is not seen.
func (p *operation) end() ([]client.StepTime, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.steps, p.omitted
}
