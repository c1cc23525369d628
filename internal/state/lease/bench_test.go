package lease

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkReserveRelease measures ADD and DEL of one address with other leases
// present. The figures should not depend on their number.
func BenchmarkReserveRelease(b *testing.B) {
	for _, test := range []struct {
		leases int
		boots  []string // with leases; the last one is that of the operations
	}{{0, []string{""}}, {4000, []string{""}}, {4000, []string{boot1}}, {4000, []string{boot1, boot2}}} {
		b.Run(fmt.Sprintf("leases=%d boots=%d", test.leases, len(slices.Compact(append(test.boots, "")))-1), func(b *testing.B) {
			s := memoryStore(b)
			wide := anyOf(ranges("10.0.0.1-10.0.255.254@10.0.0.1"))
			for _, boot := range test.boots {
				s = s.InBoot(boot)
				for i := range test.leases {
					reserve(b, s, eth0(fmt.Sprint("c", boot, i)), wide...)
				}
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
