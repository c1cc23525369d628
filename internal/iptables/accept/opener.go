package accept

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Family is an address family, each of which has its own iptables.
type Family uint8

// The families, by the numbers that the kernel has for them.
const (
	IPv4 Family = unix.AF_INET
	IPv6 Family = unix.AF_INET6
)

// ErrShut: the opening, or a part of it, is not there.
var ErrShut = errors.New("forwarding is not open")

// Opener makes the opening, and remembers what it made. It is safe for
// concurrent use, also beside other processes, and holds one descriptor from the
// first use until Close.
type Opener struct {
	netfilter netfilter
	memory    memory
	families  map[Family]*family
}

// New returns an Opener, which has done nothing yet. It acts in the network
// namespace of the process.
func New() *Opener { return newOpener("iptables", "ip6tables") }

func newOpener(iptables, ip6tables string) *Opener {
	return &Opener{netfilter: newNetfilter(), families: map[Family]*family{
		IPv4: {Family: IPv4, program: iptables, turn: make(chan struct{}, 1)},
		IPv6: {Family: IPv6, program: ip6tables, turn: make(chan struct{}, 1)},
	}}
}

// Close gives the descriptor back, and forgets. Nothing may run that uses it.
func (o *Opener) Close() error {
	for _, f := range o.families {
		f.known = nil
	}
	return o.netfilter.close()
}

// family is one family's iptables and what is known of it.
type family struct {
	Family
	program string
	turn    chan struct{} // has room for who works with known and forwards
	known   *known
	// forwards is when the host was last seen to forward without the program.
	forwards time.Time
}

// known is an opening that was there.
type known struct {
	admins []string
	watch  watch
}

// watch tells cheaply whether rules are still as they were when it began.
type watch interface {
	unchanged() bool
	// covers says whether it sees all that a listing showed, which was made after
	// it began. Then, while nothing changes, what it sees is what was listed.
	covers(*listing) bool
}

// Ensure makes the opening in the families, with a jump to each of the admin
// chains, where that is not so yet. Missing chains are made. What is already
// there, from other calls or by other tools, stays. Where iptables is not
// installed there is nothing to open, unless the kernel's policy is to drop: then
// nothing would pass, and exec.ErrNotFound is in the error.
//
// It takes microseconds when an earlier call of the same Opener found everything
// there and nobody has touched it since, or another process did, see Remember. It
// runs iptables otherwise.
func (o *Opener) Ensure(ctx context.Context, families []Family, adminChains ...string) error {
	if err := checkNames(adminChains); err != nil {
		return err
	}
	return o.each(ctx, families, func(f *family) error {
		if f.known.stillHas(adminChains) {
			return nil
		}
		f.known = nil
		w := o.recognise(f, adminChains)
		if w == nil {
			p, err := f.find(ctx)
			if errors.Is(err, exec.ErrNotFound) {
				err = f.unneeded(ctx, err)
			}
			if p == nil || err != nil {
				return wrap("open", f, err)
			}
			if w, err = p.mend(ctx, adminChains, func() watch { return o.watch(p) }); err != nil {
				return wrap("open", f, err)
			}
			o.remember(f, adminChains, w)
		}
		if w != nil {
			f.known = &known{admins: slices.Clone(adminChains), watch: w}
		}
		return nil
	})
}

// Check looks at the rules in the kernel, with iptables. ErrShut names what is
// missing; where the jump stands among others' rules does not matter. In a context
// of LookOnce it does so only until it has found all there.
func (o *Opener) Check(ctx context.Context, families []Family, adminChains ...string) error {
	if err := checkNames(adminChains); err != nil {
		return err
	}
	earlier := seenIn(ctx)
	return o.each(ctx, families, func(f *family) error {
		if earlier.has(f, adminChains) {
			return nil
		}
		p, err := f.find(ctx)
		if errors.Is(err, exec.ErrNotFound) {
			err = f.unneeded(ctx, err)
		}
		if p == nil || err != nil {
			return wrap("check", f, err)
		}
		now, err := p.list(ctx, nil)
		if err != nil {
			return wrap("check", f, err)
		}
		if missing := now.missing(adminChains); len(missing) > 0 {
			return fmt.Errorf("%w: %s: %v", ErrShut, f.program, missing)
		}
		earlier.add(f, adminChains)
		return nil
	})
}

// wrap says what an error was met at.
func wrap(act string, f *family, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s forwarding with %s: %w", act, f.program, err)
}

// each acts on every family, alone in each of this Opener's calls.
func (o *Opener) each(ctx context.Context, families []Family, act func(*family) error) error {
	var errs []error
	for _, number := range families {
		f := o.families[number]
		if f == nil {
			return fmt.Errorf("open forwarding: no address family %d", number)
		}
		select {
		case f.turn <- struct{}{}:
			errs = append(errs, act(f))
			<-f.turn
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("wait for %s: %w", f.program, ctx.Err()))
		}
	}
	return errors.Join(errs...)
}

// stillHas asks the kernel about what is known.
func (k *known) stillHas(admins []string) bool {
	if k == nil {
		return false
	}
	for _, admin := range admins {
		if !slices.Contains(k.admins, admin) {
			return false
		}
	}
	return k.watch.unchanged()
}

// watch begins to watch the rules that a program works on; nil if that cannot be.
func (o *Opener) watch(p *program) watch {
	if p.legacy {
		return watchLegacy(p.family)
	}
	return o.netfilter.watch(p.family)
}
