package configurator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/record"
)

// TestCreated: Status.Created distinguishes a new allocation from an existing
// one.
func TestCreated(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	created := func() bool {
		t.Helper()
		status, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		return status.Created
	}
	require.True(t, created())
	loseAddress(t, a.Netns)
	require.False(t, created(), "it was set up again")
	require.False(t, created(), "it is healthy")
	require.Equal(t, []string{"one ADD", "one DEL", "one ADD", "one CHECK"}, h.commands())
	r, err := h.Get(t.Context(), "a")
	require.NoError(t, err)
	require.False(t, r.Status.Created)

	for _, phase := range []record.Phase{record.Adding, record.Deleting} {
		h.setPhase("a", phase)
		require.True(t, created(), "an interrupted operation of an earlier process was rolled back")
	}
	require.NoError(t, h.Teardown(t.Context(), a))
	require.True(t, created())
}

// TestMustBeNew: an existing allocation is not changed, whatever is requested.
func TestMustBeNew(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.NetnsDir = "/run/mustbenew" })
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	a.MustBeNew = true
	setup := func(a Allocation) error {
		status, err := h.Setup(t.Context(), a)
		require.Equal(t, err == nil, status != nil && status.Created)
		return err
	}
	require.NoError(t, setup(a))
	file := filepath.Join(h.cfg.StateDir, "allocs", "a.json")
	before, err := os.ReadFile(file)
	require.NoError(t, err)
	other := h.alloc("b")
	other.ID, other.MustBeNew = "a", true
	for _, again := range []Allocation{a, other, {ID: "a", OwnNetns: true, MustBeNew: true}} {
		require.ErrorIs(t, setup(again), ErrExists)
	}
	require.NoDirExists(t, "/run/mustbenew", "no namespace was made for it")
	require.Equal(t, []string{"one ADD"}, h.commands())
	after, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, before, after)

	h.setPhase("a", record.Adding)
	require.NoError(t, setup(a), "nobody has it")
	require.Equal(t, []string{"one DEL", "one ADD"}, h.commands())

	require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	err = setup(a)
	require.ErrorIs(t, err, ErrExists, "nobody knows")
	var corrupt *record.CorruptError
	require.ErrorAs(t, err, &corrupt)
	require.Empty(t, h.commands())
}

// mustBeNewVariable makes the test binary set up an allocation that must be
// new, as soon as its input ends.
const mustBeNewVariable = "ALLOCNET_TEST_MUST_BE_NEW"

func setUpNew(text string) {
	var cfg Config
	err := json.Unmarshal([]byte(text), &cfg)
	c, newErr := New(cfg)
	_, waitErr := io.Copy(io.Discard, os.Stdin)
	if err := errors.Join(err, newErr, waitErr); err != nil {
		panic(err)
	}
	status, err := c.Setup(context.Background(), Allocation{ID: "a", OwnNetns: true, MustBeNew: true})
	switch {
	case err == nil:
		fmt.Printf("created %t", status.Created)
	case errors.Is(err, ErrExists):
		fmt.Print("exists")
	default:
		panic(err)
	}
	os.Exit(0)
}

// TestMustBeNewOfOneAmongMany: exactly one of several concurrent processes
// creates the allocation.
func TestMustBeNewOfOneAmongMany(t *testing.T) {
	const processes = 6
	h, foreign := ownHost(t)
	text, err := json.Marshal(map[string]string{"ConfDir": h.cfg.ConfDir, "StateDir": h.cfg.StateDir, "NetnsDir": h.cfg.NetnsDir})
	require.NoError(t, err)
	for range 3 {
		start, release, err := os.Pipe()
		require.NoError(t, err)
		var outputs [processes]strings.Builder
		var started []*exec.Cmd
		for i := range processes {
			c := exec.Command("/proc/self/exe")
			c.Env, c.Stdin, c.Stdout, c.Stderr = append(os.Environ(), mustBeNewVariable+"="+string(text)), start, &outputs[i], os.Stderr
			require.NoError(t, c.Start())
			started = append(started, c)
		}
		require.NoError(t, errors.Join(release.Close(), start.Close()))
		answers := map[string]int{}
		for i, c := range started {
			require.NoError(t, c.Wait())
			answers[outputs[i].String()]++
		}
		require.Equal(t, map[string]int{"created true": 1, "exists": processes - 1}, answers)
		require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a", OwnNetns: true}))
		h.requireNoOwn(foreign)
	}
}
