package hostports

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
)

// TestPickerAgain: a number that was picked together with one that another operation got first can be
// picked again.
func TestPickerAgain(t *testing.T) {
	port := portmap.Port{To: 80, Protocols: []string{"sctp"}} // no process listens
	k := NewPicker(PickerOptions{Store: record.Open(t.TempDir()), ID: "a", First: 21000, Last: 21002}, []portmap.Port{port, port})
	first, err := k.Pick(t.Context())
	require.NoError(t, err)
	lost := first[0].Value
	conflict := &portmap.ConflictError{Mapping: portmap.Mapping{HostPort: lost}, ID: "a", OtherID: "b"}
	require.True(t, k.Again(errors.Join(errors.New("first"), conflict)))
	second, err := k.Pick(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, second[0].Value, second[1].Value)
	require.Contains(t, []int{second[0].Value, second[1].Value}, first[1].Value)
	require.NotContains(t, []int{second[0].Value, second[1].Value}, lost)

	require.False(t, k.Again(&portmap.ConflictError{Mapping: portmap.Mapping{HostPort: 80}, OtherID: "b"}), "no picked number")
	require.False(t, k.Again(&portmap.ConflictError{Mapping: portmap.Mapping{HostPort: second[0].Value}, OtherID: "a"}), "its own")
	for range 10 {
		if _, err = k.Pick(t.Context()); err != nil {
			break
		}
		require.True(t, k.Again(&allocnet.PortTakenError{Mapping: portmap.Mapping{HostPort: k.one()}}))
	}
	require.ErrorIs(t, err, allocnet.ErrNoPort)
}

// one returns one of the picked numbers.
func (k *Picker) one() int {
	for n := range k.picked {
		return n
	}
	return 0
}

// TestPickerWithoutDescriptors: numbers that cannot be tried are not said to be in use.
func TestPickerWithoutDescriptors(t *testing.T) {
	k := NewPicker(PickerOptions{Store: record.Open(t.TempDir()), ID: "a", First: 21000, Last: 21002}, []portmap.Port{{To: 80}})
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}))
	_, err := k.Pick(t.Context())
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	require.ErrorIs(t, err, unix.EMFILE)
	require.ErrorIs(t, err, allocnet.ErrLimit)
	require.NotErrorIs(t, err, allocnet.ErrNoPort)
	_, err = k.Pick(t.Context())
	require.NoError(t, err)
}
