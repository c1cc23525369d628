package exhausted

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
)

func TestLimit(t *testing.T) {
	for _, cause := range causes {
		err := Limit(fmt.Errorf("look: %w", os.NewSyscallError("open", cause)))
		require.ErrorIs(t, err, cause)
		require.ErrorIs(t, err, allocnet.ErrLimit)
		require.Equal(t, err, Limit(err))
	}
	for _, err := range []error{nil, fs.ErrNotExist, unix.EADDRINUSE, errors.New("too many open files")} {
		require.Equal(t, err, Limit(err))
	}
}
