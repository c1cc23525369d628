package cniexec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
)

func TestInterfacePrefix(t *testing.T) {
	e := newEnvironment(t, "main")
	r := e.request("prefix", e.attachment("net", "1.0.0", plugin{name: "main", on: good}))
	r.InterfacePrefix = "wan"
	add(t, r)
	require.NoError(t, Engine{}.Del(t.Context(), r))
	calls, err := fakeplugin.Calls(e.log)
	require.NoError(t, err)
	require.Equal(t, []string{"wan0", "wan0"}, []string{calls[0].IfName, calls[1].IfName})
}

// TestHungPluginWithoutGoCNI: the operations that pass go-cni by keep their
// deadline too, though a grandchild holds stdout.
func TestHungPluginWithoutGoCNI(t *testing.T) {
	for command, operate := range map[string]func(context.Context, *engine.Request) error{
		"STATUS": func(ctx context.Context, r *engine.Request) error {
			return Engine{}.Status(ctx, r.PluginDirs, r.Attachments[0].Network)
		},
		"GC": func(ctx context.Context, r *engine.Request) error {
			return Engine{}.GC(ctx, r.PluginDirs, r.Attachments[0].Network, nil)
		},
		"DEL": Engine{}.Del, // without a result
	} {
		t.Run(command, func(t *testing.T) {
			e := newEnvironment(t, "main")
			id := "direct-" + command
			t.Cleanup(func() { _ = pluginexec.KillOrphans(of(id).Work()) })
			r := e.request(id, e.attachment("net", "1.1.0", plugin{name: "main", on: on(command, fakeplugin.Behaviour{Hang: true, Grandchild: true})}))
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- operate(ctx, r) }()
			select {
			case err := <-done:
				require.ErrorIs(t, err, context.DeadlineExceeded)
			case <-time.After(10 * time.Second):
				t.Fatal("operation is held past its deadline")
			}
			requireNobodyWorksOn(t, id)
			requireEmptyCache(t)
		})
	}
}

// TestDelClearsWhatACrashedAddCached: the entry would be another runtime's GC's
// to act upon.
func TestDelClearsWhatACrashedAddCached(t *testing.T) {
	e := newEnvironment(t, "main")
	r := e.request("crashed", e.attachment("net", "1.0.0", plugin{name: "main", on: good}))
	require.NoError(t, os.MkdirAll(filepath.Dir(cacheFile(r, 0)), 0o700))
	require.NoError(t, os.WriteFile(cacheFile(r, 0), []byte(`{"kind":"cniCacheV1"}`), 0o600))
	require.NoError(t, Engine{}.Del(t.Context(), r))
	requireEmptyCache(t)
}

// TestDelOfWhatGoCNIRefuses: the plugins run all the same.
func TestDelOfWhatGoCNIRefuses(t *testing.T) {
	e := newEnvironment(t, "main")
	r := e.request("refused", e.attachment("net", "1.0.0", plugin{name: "main", on: good}))
	add(t, r)
	r.Attachments[0].Network.Bytes = []byte("{")
	require.NoError(t, Engine{}.Del(t.Context(), r))
	require.Equal(t, []string{"main ADD", "main DEL"}, e.commands())
}

// TestPrevResultHasTheVersionOfTheNetwork also where DEL passes go-cni by.
func TestPrevResultHasTheVersionOfTheNetwork(t *testing.T) {
	for version, want := range map[string]string{"0.3.1": "", "0.4.0": "0.4.0", "1.0.0": "1.0.0"} {
		e := newEnvironment(t, "a", "b")
		result := json.RawMessage(fmt.Sprintf(`{"cniVersion":%q,"ips":[{"version":"4","address":"10.1.2.3/24"}]}`, version))
		r := e.request("version", e.attachment("one", version, plugin{name: "a", on: on("ADD", fakeplugin.Behaviour{Result: result})}))
		add(t, r)
		r.Attachments = append(r.Attachments, e.attachment("two", version, plugin{name: "b"})) // of unknown result
		require.NoError(t, Engine{}.Del(t.Context(), r))
		var prev struct{ CNIVersion string }
		if raw, given := e.lastStdin()["prevResult"]; given {
			require.NoError(t, json.Unmarshal(raw, &prev))
		}
		require.Equal(t, want, prev.CNIVersion)
	}
}

func TestCacheThatIsNoResult(t *testing.T) {
	file := filepath.Join(t.TempDir(), "entry")
	require.Nil(t, readCache(file), "missing")
	for _, content := range []string{"", "{", "{}", `{"result":7}`,
		`{"result":{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24","interface":7}]}}`} {
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		require.Nil(t, readCache(file), content)
	}
	require.NoError(t, os.WriteFile(file, []byte(`{"result":`+goodResult+`}`), 0o600))
	require.NotNil(t, readCache(file))
}

// TestLendingToAFreshHost: libcni's directory need not exist.
func TestLendingToAFreshHost(t *testing.T) {
	e := newEnvironment(t, "main")
	r := e.request("fresh", e.attachment("net", "1.0.0", plugin{name: "main", on: good}))
	add(t, r)
	saved := libcni.CacheDir
	libcni.CacheDir = filepath.Join(e.dir, "not", "yet")
	defer func() { libcni.CacheDir = saved }()
	require.NoError(t, Engine{}.Check(t.Context(), r))
	require.NoError(t, Engine{}.Del(t.Context(), r))
	require.Contains(t, string(e.lastStdin()["prevResult"]), "10.1.2.3")
}

// TestCacheThatCannotBeWritten: the error says so, and the entries that could
// be written do not stay.
func TestCacheThatCannotBeWritten(t *testing.T) {
	e := newEnvironment(t, "a", "b")
	r := e.request("unwritable",
		e.attachment("one", "1.0.0", plugin{name: "a", on: good}), e.attachment("two", "1.0.0", plugin{name: "b", on: good}))
	add(t, r)
	block := func(i int) {
		require.NoError(t, os.MkdirAll(filepath.Join(cacheFile(r, i), "in the way"), 0o700))
		t.Cleanup(func() { os.RemoveAll(cacheFile(r, i)) })
	}
	block(1)
	require.ErrorContains(t, Engine{}.Check(t.Context(), r), `write libcni's cache entry of network "two"`)
	require.NoFileExists(t, cacheFile(r, 0))

	block(0)
	require.NoError(t, os.RemoveAll(cacheFile(r, 1)))
	require.NoError(t, os.WriteFile(cacheFile(r, 1), nil, 0o600))
	require.ErrorIs(t, dropCache(r), unix.ENOTEMPTY)
	require.NoFileExists(t, cacheFile(r, 1), "one that stays does not save the others")
}

// TestClippedErrorKeepsItsCauses: only the text is shortened.
func TestClippedErrorKeepsItsCauses(t *testing.T) {
	e := newEnvironment(t, "main")
	long := strings.Repeat("x", 3*maxErrorText)
	r := e.request("long", e.attachment("net", "1.0.0", plugin{name: "main", on: on("ADD", fakeplugin.Behaviour{Code: 11, Msg: long})}))
	_, err := Engine{}.Add(t.Context(), r)
	require.Less(t, len(err.Error()), maxErrorText+100)
	var cniErr *types.Error
	require.ErrorAs(t, err, &cniErr)
	require.EqualValues(t, 11, cniErr.Code)
	require.Equal(t, long, cniErr.Msg)
}

func TestPanicIsAnError(t *testing.T) {
	err := guard(t.Context(), of("panics"), "ADD", func(context.Context) error { panic("index out of range") })
	require.ErrorIs(t, err, engine.ErrInvalidResult)
	require.ErrorContains(t, err, "index out of range")
}

// TestGuardAbandons what neither ends nor has a process that could be killed.
func TestGuardAbandons(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("because"))
	forever := make(chan struct{})
	defer close(forever)
	err := guard(ctx, of("abandoned"), "ADD", func(context.Context) error { <-forever; return nil })
	require.ErrorIs(t, err, ErrAbandoned)
	require.ErrorIs(t, err, context.Canceled)
}
