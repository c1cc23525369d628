package hostlocal

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkAddDel parses the configuration, leases an address and releases it,
// with leases of others present.
func BenchmarkAddDel(b *testing.B) {
	for _, n := range []int{0, 4000} {
		b.Run(fmt.Sprintf("leases=%d", n), func(b *testing.B) {
			parent := ""
			if _, err := os.Stat("/dev/shm"); err == nil {
				parent = "/dev/shm"
			}
			dir, err := os.MkdirTemp(parent, "hostlocal")
			require.NoError(b, err)
			b.Cleanup(func() { os.RemoveAll(dir) })
			wide := strings.ReplaceAll(conf(subnet), "10.1.0.0/24", "10.1.0.0/16")
			for i := range n {
				_, err := load(b, dir, wide).Add(b.Context(), container(fmt.Sprint("c", i)))
				require.NoError(b, err)
			}
			for i := 0; b.Loop(); i++ {
				c := container(fmt.Sprint("new", i))
				_, err := load(b, dir, wide).Add(b.Context(), c)
				require.NoError(b, err)
				require.NoError(b, load(b, dir, wide).Del(b.Context(), c))
			}
		})
	}
}
