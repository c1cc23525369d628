package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/cmd/internal/server/api"
	"github.com/allocnet/allocnet/cmd/internal/server/apitest"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/record"
)

// sendConflists makes every call that can send network configurations.
func sendConflists(c *client.Client) {
	ctx := context.Background()
	lists := []json.RawMessage{[]byte(`{"cniVersion":"1.0.0","name":"mine","plugins":[{"type":"mine"}]}`)}
	say := func(call string, err error) {
		fmt.Println(call, errors.Is(err, client.ErrConflists), errors.Is(err, client.ErrForbidden))
	}
	for _, id := range []string{"recorded", "unknown", "unreadable"} {
		a := configurator.Allocation{ID: id, Netns: "/n", Conflists: lists}
		_, err := c.Setup(ctx, a)
		say("setup "+id, err)
		say("check "+id, c.Check(ctx, a))
		say("teardown "+id, c.Teardown(ctx, a))
	}
	_, err := c.GCScope(ctx, configurator.Scope{Live: []string{}, Conflists: lists})
	say("gc", err)
	dirs := []string{"/mine"}
	a := configurator.Allocation{ID: "recorded", Netns: "/n", PluginDirs: dirs}
	_, err = c.Setup(ctx, a)
	say("setup by dirs", err)
	say("teardown by dirs", c.Teardown(ctx, a))
	_, err = c.Setup(ctx, configurator.Allocation{ID: "recorded", Netns: "/n", NetnsOverride: true})
	say("setup the host by dirs", err)
	_, err = c.GCScope(ctx, configurator.Scope{Live: []string{}, PluginDirs: dirs})
	say("gc by dirs", err)
	say("ready", c.ReadyFor(ctx, configurator.Allocation{Conflists: lists}))
	say("ready by dirs", c.ReadyFor(ctx, configurator.Allocation{PluginDirs: dirs}))
	unknown := configurator.Allocation{ID: "unknown", Netns: "/n", Conflists: lists}
	_, err = c.Audit(ctx, unknown)
	say("audit unknown", err)
	_, err = c.Force(ctx, unknown)
	say("force unknown", err)
}

// receiver records with which configurations and directories calls arrive.
type receiver struct {
	attached
	mu      sync.Mutex
	arrived []string
}

func (r *receiver) note(call string, lists []json.RawMessage, dirs []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.arrived = append(r.arrived, fmt.Sprint(call, " ", len(lists), " ", len(dirs)))
}

func (r *receiver) Get(ctx context.Context, id string) (*configurator.Record, error) {
	switch id {
	case "unknown":
		return nil, configurator.ErrNotFound
	case "unreadable":
		return nil, &record.CorruptError{ID: id, File: "/f", Err: errors.New("not JSON")}
	}
	return r.attached.Get(ctx, id)
}

func (r *receiver) Setup(ctx context.Context, a configurator.Allocation) (*configurator.Status, error) {
	r.note("setup "+a.ID, a.Conflists, a.PluginDirs)
	return r.attached.Setup(ctx, a)
}

func (r *receiver) ReadyFor(_ context.Context, a configurator.Allocation) error {
	r.note("ready", a.Conflists, a.PluginDirs)
	return nil
}

func (r *receiver) Audit(_ context.Context, a configurator.Allocation) ([]configurator.Leftover, error) {
	r.note("audit "+a.ID, a.Conflists, a.PluginDirs)
	return nil, nil
}

func (r *receiver) Force(_ context.Context, a configurator.Allocation) ([]configurator.Leftover, error) {
	r.note("force "+a.ID, a.Conflists, a.PluginDirs)
	return nil, nil
}

func (r *receiver) Check(_ context.Context, a configurator.Allocation) error {
	r.note("check "+a.ID, a.Conflists, a.PluginDirs)
	return nil
}

func (r *receiver) Teardown(_ context.Context, a configurator.Allocation) error {
	r.note("teardown "+a.ID, a.Conflists, a.PluginDirs)
	return nil
}

func (r *receiver) GCScope(_ context.Context, s configurator.Scope) (*configurator.GCReport, error) {
	r.note("gc", s.Conflists, s.PluginDirs)
	return &configurator.GCReport{}, nil
}

// TestConflistsOfOthers: only root may send configurations. A teardown with a record
// does not use the request's configuration, so it is not refused.
func TestConflistsOfOthers(t *testing.T) {
	requireRoot(t)
	const group = 54321
	member := syscall.Credential{Uid: 65534, Gid: group}
	everything := []string{"setup recorded 1 0", "check recorded 1 0", "teardown recorded 1 0",
		"setup unknown 1 0", "check unknown 1 0", "teardown unknown 1 0",
		"setup unreadable 1 0", "check unreadable 1 0", "teardown unreadable 1 0", "gc 1 0",
		"setup recorded 0 1", "teardown recorded 0 1", "setup recorded 0 0", "gc 0 1",
		"ready 1 0", "ready 0 1", "audit unknown 1 0", "force unknown 1 0"}
	for name, c := range map[string]struct {
		who     syscall.Credential
		allowed bool
		arrived []string
		refused []string
	}{
		"root": {who: syscall.Credential{}, arrived: everything},
		"a member": {who: member, arrived: []string{"check recorded 0 0", "teardown recorded 0 0", "teardown recorded 0 0"},
			refused: []string{"setup recorded", "setup unknown", "check unknown", "teardown unknown", "setup unreadable", "gc", "setup by dirs", "setup the host by dirs", "gc by dirs",
				"ready", "ready by dirs", "audit unknown", "force unknown"}},
		"a permitted member": {who: member, allowed: true,
			arrived: append(slices.Clone(everything[:10]), "teardown recorded 0 0", "ready 1 0", "audit unknown 1 0", "force unknown 1 0"),
			refused: []string{"setup by dirs", "setup the host by dirs", "gc by dirs", "ready by dirs"}},
	} {
		t.Run(name, func(t *testing.T) {
			service := &receiver{}
			socket, _ := apitest.Serve(t, api.Options{
				Groups: []uint32{group}, AllowConflists: c.allowed, Service: func() allocnet.Service { return service },
				CNI: func(_ context.Context, r cni.Request) cni.Response {
					return cni.Response{Result: fmt.Appendf(nil, "%v", r.Conflists)}
				},
			})
			openTo(t, socket)
			require.NoError(t, os.Chmod(socket, 0o777))
			said := runPeer(t, socket, c.who, peerConflists+"=1")
			require.Equal(t, c.arrived, service.arrived)
			var refused []string
			for line := range strings.Lines(said) {
				call, is := strings.CutSuffix(line, " true true\n")
				if byDirs, forbidden := strings.CutSuffix(line, " by dirs false true\n"); forbidden {
					call, is = byDirs+" by dirs", true
				}
				if is {
					refused = append(refused, call)
				} else {
					require.True(t, strings.HasSuffix(line, " false false\n"), line)
				}
			}
			require.Equal(t, c.refused, refused)
		})
	}
}
