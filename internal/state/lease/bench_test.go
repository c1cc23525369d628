package lease

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkReserveRelease measures ADD and DEL of one address with other leases
// present. The figures should not depend on their number.
func BenchmarkReserveRelease(b *testing.B) {
	for _, n := range []int{0, 4000} {
		b.Run(fmt.Sprintf("leases=%d", n), func(b *testing.B) {
			s := memoryStore(b)
			wide := anyOf(ranges("10.0.0.1-10.0.255.254@10.0.0.1"))
			for i := range n {
				reserve(b, s, eth0(fmt.Sprint("c", i)), wide...)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				owner := eth0(fmt.Sprint("new", i))
				reserve(b, s, owner, wide...)
				if err := s.Release(b.Context(), owner); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// memoryStore returns a store on tmpfs if there is one.
func memoryStore(b *testing.B) *Store {
	b.Helper()
	parent := ""
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		parent = "/dev/shm"
	}
	dir, err := os.MkdirTemp(parent, "lease")
	require.NoError(b, err)
	b.Cleanup(func() { os.RemoveAll(dir) })
	s, err := Open(dir, network)
	require.NoError(b, err)
	return s
}
