package confmanager

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/conflist"
)

// atomicError is an error that a test changes while the manager runs.
type atomicError struct {
	mu  sync.Mutex
	err error
}

func (e *atomicError) set(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = err
}

func (e *atomicError) get() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

func TestOptions(t *testing.T) {
	tests := []struct {
		name string
		o    Options
		want string // part of the error, "" for none
	}{
		{"the least", Options{ConfDir: "/x"}, ""},
		{"no directory", Options{}, "set ConfDir"},
		{"own file with a directory", Options{ConfDir: "/x", OwnFile: "../a.conflist"}, "without a directory"},
		{"own file of another kind", Options{ConfDir: "/x", OwnFile: "a.conf"}, "ends in .conflist"},
		{"own file hidden", Options{ConfDir: "/x", OwnFile: ".conflist"}, "own file"},
		{"name", Options{ConfDir: "/x", Name: "a/b"}, "network name"},
		{"taken key", Options{ConfDir: "/x", Plugin: map[string]any{"delegates": 1}}, `"delegates" is set by the manager`},
		{"key that is no JSON", Options{ConfDir: "/x", Plugin: map[string]any{"f": func() {}}}, "plugin keys"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := New(tt.o)
			if tt.want == "" {
				require.NoError(t, err)
				require.Equal(t, "/x/"+OwnFileName, m.State().OwnFile)
				return
			}
			require.ErrorContains(t, err, "configuration manager: ")
			require.ErrorContains(t, err, tt.want)
		})
	}
}

// TestRelativePaths: relative paths refer to the working directory at the time
// of New.
func TestRelativePaths(t *testing.T) {
	t.Chdir(t.TempDir())
	m, err := New(Options{ConfDir: "net.d", ReadinessFile: "ready", PluginDirs: []string{"bin"}})
	require.NoError(t, err)
	here, err := os.Getwd()
	require.NoError(t, err)
	for _, path := range []string{m.o.ConfDir, m.o.ReadinessFile, m.o.PluginDirs[0], m.own.path} {
		require.True(t, filepath.IsAbs(path) && filepath.Dir(path) != "/", path)
		require.Contains(t, path, here)
	}
}

// TestOnChange: OnChange is called once for every change, and only then.
func TestOnChange(t *testing.T) {
	var mu sync.Mutex
	var states []State
	var lacks atomicError
	r := newRig(t, func(o *Options) {
		usable := o.Usable
		o.Usable = func(n *conflist.Network) error { return errors.Join(usable(n), lacks.get()) }
		o.OnChange = func(s State) {
			mu.Lock()
			defer mu.Unlock()
			states = append(states, s)
		}
	})
	r.write("net.d/20-b.conflist", network("b", "p"))
	r.run().delegates("b")
	for i := range 4 {
		// A file that is not a network changes nothing.
		looks := r.looks.Load()
		r.write("net.d/README", string(rune('a'+i)))
		r.eventually(func() bool { return r.looks.Load() > looks }, "looks")
	}
	lacks.set(errors.New("lacks something"))
	r.write("net.d/README", "")
	r.unready("lacks something")
	r.stop()

	require.Len(t, states, 2)
	require.NoError(t, states[0].NotReady)
	require.Equal(t, "b", states[0].Primary)
	require.ErrorContains(t, states[1].NotReady, "lacks something")
}
