package confmanager

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/conflist"
)

// hammer is the duration of the changes.
const hammer = time.Second

// TestHammer makes random changes as fast as possible. In the end the manager's
// state is right, and stays so without further events.
func TestHammer(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	r := newRig(t, func(o *Options) { o.PluginDirs = []string{o.ConfDir + "/../bin"} })
	// From now on the manager owns its file, whatever its content is.
	r.write("net.d/20-b.conflist", network("b", "p"))
	r.run().delegates("b")
	stop := whileRead(t, r)
	for end := time.Now().Add(hammer); time.Now().Before(end); {
		disturb(r, random)
	}
	stop()

	r.remove("net.d")
	r.mkdir("net.d")
	final := fmt.Sprintf("final%d", random.IntN(1000))
	r.write("net.d/50-final.conflist", network(final, "p"), own, "{")
	r.delegates(final)
	requireOwn(t, r)
	require.Equal(t, network(final, "p"), r.read("net.d/50-final.conflist"))
	n, err := conflist.Parse([]byte(r.read(own)))
	require.NoError(t, err)
	require.True(t, n.IsOurs())
}

// disturb makes one random change and ignores its errors.
func disturb(r *rig, random *rand.Rand) {
	name := func() string {
		names := []string{"10-a.conflist", "20-b.conflist", "30-c.conf", "a", "..data", OwnFileName, "40-x.bak"}
		return r.path("net.d/" + names[random.IntN(len(names))])
	}
	letter := string(rune('a' + random.IntN(4)))
	switch random.IntN(12) {
	case 0, 1, 2:
		_ = os.WriteFile(name(), []byte(network(letter, "p")), 0o644)
	case 3:
		_ = os.WriteFile(name(), []byte(network(letter, "p")[:random.IntN(30)]), 0o644)
	case 4:
		_ = os.WriteFile(name(), []byte(oursFor(letter)), 0o600)
	case 5:
		_ = os.RemoveAll(name())
	case 6, 7:
		_ = os.Rename(name(), name())
	case 8:
		_ = os.Symlink(name(), name())
	case 9:
		_ = os.Mkdir(name(), 0o755)
	case 10:
		_ = os.RemoveAll(r.path("old"))
		_ = os.Rename(r.path("net.d"), r.path("old"))
	case 11:
		_ = os.Mkdir(r.path("net.d"), 0o755)
		_ = os.Chmod(name(), 0o700|os.FileMode(random.IntN(0o100)))
	}
}

// whileRead calls all methods of the manager that report state, until stop is
// called.
func whileRead(t *testing.T, r *rig) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var reader sync.WaitGroup
	reader.Go(func() {
		for ctx.Err() == nil {
			s := r.State()
			_ = text(s.NotReady) + fmt.Sprint(texts(s.Problems), r.Ready())
			for _, n := range r.Networks() {
				if n.IsOurs() || n.File == r.path(own) {
					t.Errorf("delegates to itself: %q of %q", n.Name, n.File)
				}
				_, _ = r.raw(n.Name)
			}
			runtime.Gosched()
		}
	})
	return func() { cancel(); reader.Wait() }
}

// TestAlwaysComplete reads the manager's file all the time while other files
// change. It is never missing, empty, incomplete or world-readable.
func TestAlwaysComplete(t *testing.T) {
	r := newRig(t)
	r.write("net.d/20-b.conflist", network("b", "p"))
	r.run().delegates("b")
	ctx, cancel := context.WithCancel(t.Context())
	var reader sync.WaitGroup
	reader.Go(func() {
		for ctx.Err() == nil {
			data, err := os.ReadFile(r.path(own))
			info, statErr := os.Stat(r.path(own))
			if err != nil || statErr != nil || info.Mode() != ownMode || delegateOf(string(data)) == "" {
				t.Errorf("%q: %v, %v", data, err, statErr)
				return
			}
		}
	})
	for i := range 30 {
		name := fmt.Sprintf("n%d", i)
		r.write("net.d/20-b.conflist", network(name, "p"))
		r.delegates(name)
	}
	cancel()
	reader.Wait()
}
