package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
)

// memory is a backend whose networks consist of records only.
type memory struct {
	allocnet.Service // for methods that the plugin does not need
	allocs           map[string]configurator.Allocation
}

func (m memory) Setup(_ context.Context, a configurator.Allocation) (*configurator.Status, error) {
	m.allocs[a.ID] = a
	return &configurator.Status{}, nil
}

func (m memory) Check(ctx context.Context, a configurator.Allocation) error {
	_, err := m.Get(ctx, a.ID)
	return err
}

func (m memory) Teardown(_ context.Context, a configurator.Allocation) error {
	delete(m.allocs, a.ID)
	return nil
}

func (m memory) GCScope(_ context.Context, s configurator.Scope) (*configurator.GCReport, error) {
	for id, a := range m.allocs {
		if a.Scope == s.Name {
			delete(m.allocs, id)
		}
	}
	return nil, nil
}

func (m memory) Get(_ context.Context, id string) (*configurator.Record, error) {
	a, ok := m.allocs[id]
	if !ok {
		return nil, fmt.Errorf("%w: %q", configurator.ErrNotFound, id)
	}
	networks := []configurator.NetworkRecord{{Result: json.RawMessage(loResult)}}
	return &configurator.Record{ID: id, Scope: a.Scope, Phase: configurator.PhaseReady, Networks: networks}, nil
}

// FuzzServe: for any input, a runtime can parse the response, a successful ADD
// is undone by the same DEL, and nothing else changes.
func FuzzServe(f *testing.F) {
	for _, more := range []string{
		"", `"delegate":"br"`, `"delegates":["a","b"]`, `"plugins":[{"type":"bridge"}],"args":{"cni":{}}`,
		`"prevResult":` + loResult, `"cni.dev/valid-attachments":[{"containerID":"c","ifname":"eth0"}]`,
		`"runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":2,"protocol":"udp"}],"mac":"02:00:00:00:00:01","x":[]}`,
		`"socket":"/s","patience":"5s","settings":"/f","capabilities":{"mac":true}`,
	} {
		for _, command := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"} {
			f.Add(command, "c", "/run/netns/c", "eth0", "A=b;C=d", []byte(ours("1.1.0", more)))
		}
	}
	f.Fuzz(func(t *testing.T, command, container, netns, ifName, args string, config []byte) {
		m := memory{allocs: map[string]configurator.Allocation{"foreign": {ID: "foreign", Scope: "cni/foreign-network"}, "api": {ID: "api"}}}
		s := New(Options{
			Backend: func() allocnet.Service { return m },
			Ready:   func(context.Context, configurator.Allocation) error { return nil },
		})
		e := Env{Command: command, ContainerID: container, Netns: netns, IfName: ifName, Args: args}
		r := s.Serve(t.Context(), Request{Env: e, Config: config})
		requireAnswer(t, r)
		if command == "ADD" && r.Error == nil {
			require.Len(t, m, 3)
			require.NotEmpty(t, r.Result)
			e.Command, e.Netns = "DEL", ""
			require.Nil(t, s.Serve(t.Context(), Request{Env: e, Config: config}).Error)
		}
		if !strings.Contains(string(config), "foreign") && !strings.Contains(string(config), `\u`) {
			require.Len(t, m.allocs, 2)
		}
	})
}

// requireAnswer checks the form of a response.
func requireAnswer(t *testing.T, r Response) {
	t.Helper()
	_, err := json.Marshal(r)
	require.NoError(t, err)
	if r.Error != nil {
		require.Nil(t, r.Result)
		require.NotZero(t, r.Error.Code)
		require.NotEmpty(t, r.Error.Msg)
		require.Contains(t, Versions, r.Error.CNIVersion)
	}
}

// FuzzIDOf: two attachments never have the same ID.
func FuzzIDOf(f *testing.F) {
	f.Add("a", "b.c", "a.b", "c")
	f.Add("a.b", "c-d", "a", "b.c-d")
	f.Fuzz(func(t *testing.T, c1, i1, c2, i2 string) {
		for _, e := range []Env{{Command: "DEL", ContainerID: c1, IfName: i1}, {Command: "DEL", ContainerID: c2, IfName: i2}} {
			if checkEnv(e) != nil {
				return
			}
			require.LessOrEqual(t, len(idOf(e.ContainerID, e.IfName)), names.MaxID)
		}
		if c1 != c2 || i1 != i2 {
			require.NotEqual(t, idOf(c1, i1), idOf(c2, i2))
		}
	})
}
