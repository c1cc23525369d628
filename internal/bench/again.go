package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/allocnet/allocnet/configurator"
)

// The measures of DELs that find nothing to remove.
const (
	againTitle   = "DEL, a second time"
	unknownTitle = "DEL of an unknown container"
)

// user sets up and tears down a container, as its runtime does.
type user interface {
	add(ctx context.Context, id string) error
	del(ctx context.Context, id string) error
}

// again measures DELs that find nothing to remove. Runtimes repeat their DELs.
func (b *bench) again(ctx context.Context) (err error) {
	b.progress("DELs that find nothing")
	slots, err := b.slots(ctx, 1)
	if err != nil {
		return err
	}
	s := slots[0]
	library, err := b.newConfigured(ctx, b.newNetwork(nativeName, "bridge", false), nativeName, configurator.EngineNative)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, library.close(ctx)) }()
	through, stop, err := b.startDaemon(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	plugins, err := b.buildPlugins(ctx)
	if err != nil {
		return err
	}
	users := map[string]user{nativeName: &libraryUser{library, s}, daemonName: through}
	for name, dir := range map[string]string{allocnetName: plugins, referenceName: b.plugins} {
		n := b.newNetwork("again-"+name[:4], "bridge", false)
		defer func() { err = errors.Join(err, removeBridge(n.bridge())) }()
		if users[name], err = newDropin(n, dir, s); err != nil {
			return err
		}
	}
	return b.againTurns(ctx, users)
}

// againTurns lets each user set up and tear down a container, and measures
// repeated DELs of it and DELs of an unknown one.
func (b *bench) againTurns(ctx context.Context, users map[string]user) error {
	order := []string{nativeName, daemonName, allocnetName, referenceName}
	known, unknown := map[string]*samples{}, map[string]*samples{}
	var turns []turn
	for _, name := range order {
		u := users[name]
		known[name], unknown[name] = &samples{}, &samples{}
		turns = append(turns, turn{1, func(round int) error {
			id, never := fmt.Sprintf("again-%d", round), fmt.Sprintf("never-%d", round)
			return errors.Join(u.add(ctx, id), u.del(ctx, id),
				timed(known[name], func() error { return u.del(ctx, id) }),
				timed(unknown[name], func() error { return u.del(ctx, never) }))
		}})
	}
	if err := takeTurns(ctx, b.size.again, turns); err != nil {
		return err
	}
	for _, name := range order {
		b.report.add(againTitle, name, seconds, *known[name])
	}
	for _, name := range order {
		b.report.add(unknownTitle, name, seconds, *unknown[name])
	}
	return nil
}

// libraryUser passes the ports to DEL too, as runtimes do.
type libraryUser struct {
	*configured
	slot *slot
}

func (u *libraryUser) add(ctx context.Context, id string) error {
	return u.configured.add(ctx, u.slot.as(id))
}

func (u *libraryUser) del(ctx context.Context, id string) error {
	return u.Teardown(ctx, configurator.Allocation{ID: id, Netns: u.slot.netns, Ports: u.slot.ports()})
}
