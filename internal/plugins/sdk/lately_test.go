package sdk

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLately(t *testing.T) {
	l := &Lately{}
	looked := 0
	look := func() error { looked++; return nil }
	require.NoError(t, l.Unless("a", look))
	l.seen["a"] = time.Now().Add(time.Hour) // a moment that lasts
	require.NoError(t, l.Unless("a", look))
	require.Equal(t, 1, looked)
	require.NoError(t, l.Unless("b", look))
	require.Equal(t, 2, looked)
	l.Forget()
	require.NoError(t, l.Unless("a", look))
	require.Equal(t, 3, looked)
	l.seen["a"] = time.Now().Add(-latelyTime)
	require.NoError(t, l.Unless("a", look))
	require.Equal(t, 4, looked, "it serves for a moment only")

	failure := errors.New("gone")
	require.ErrorIs(t, l.Unless("c", func() error { return failure }), failure)
	require.NoError(t, l.Unless("c", look))
	require.Equal(t, 5, looked, "what failed is looked at again")

	var none *Lately
	none.Forget()
	require.NoError(t, none.Unless("a", look))
	require.NoError(t, none.Unless("a", look))
	require.Equal(t, 7, looked)
}
