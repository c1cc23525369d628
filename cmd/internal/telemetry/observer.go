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

// maxSteps bounds the steps in one event: gc and repair have several per allocation.
const maxSteps = 64

// observer implements configurator.Observer for a Telemetry.
type observer struct{ *Telemetry }

// operation collects the steps of an operation.
type operation struct {
	id    string
	began time.Time

	mu      sync.Mutex
	steps   []client.StepTime
	omitted int
}

// moment is the context of an operation or a step. It holds all values in one memory
// allocation, where context.WithValue needs one per value.
type moment struct {
	context.Context
	whole *operation // nil for a step outside an operation
	began time.Time
	span  trace.Span // nil if there is no trace endpoint
}

type momentKey struct{}

func (m *moment) Value(key any) any {
	if key == (momentKey{}) {
		return m
	}
	return m.Context.Value(key)
}

// Begin implements configurator.Observer. It records the time.
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

// End implements configurator.Observer. The end of an operation also publishes an event
// with its steps.
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

// maxArgs bounds the size of CNI_ARGS in one event, in bytes: an allocation may have
// 128 KiB.
const maxArgs = 1024

// boundArgs returns as many args as fit into maxArgs bytes, the shortest first.
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

// add records a step that ended.
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

// end returns the steps and the number of omitted ones. Steps that end later are not in
// the event.
func (p *operation) end() ([]client.StepTime, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.steps, p.omitted
}
