package sandbox

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// benchSandbox is a sandbox that lasts as long as the benchmark.
func benchSandbox(b *testing.B) *Sandbox {
	b.Helper()
	privhost.Require(b)
	s, err := Create("bench")
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Destroy()) })
	return s
}

func BenchmarkDo(b *testing.B) {
	s := benchSandbox(b)
	for b.Loop() {
		if err := s.Do(func() error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	path := benchSandbox(b).Path()
	for b.Loop() {
		s, err := Open(path)
		if err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}

func BenchmarkValidate(b *testing.B) {
	path := benchSandbox(b).Path()
	for b.Loop() {
		if err := Validate(path); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLoopbackUp(b *testing.B) {
	path := benchSandbox(b).Path()
	for b.Loop() {
		if err := LoopbackUp(path); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCreate(b *testing.B) {
	benchSandbox(b) // makes the directory
	for i := 0; b.Loop(); i++ {
		s, err := Create(fmt.Sprint("c", i))
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		require.NoError(b, s.Destroy())
		b.StartTimer()
	}
}

func BenchmarkTake(b *testing.B) {
	benchSandbox(b) // makes the directory
	pool, err := NewPool(PoolOptions{Size: 4})
	require.NoError(b, err)
	defer pool.Close()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		for pool.Ready() == 0 {
			runtime.Gosched()
		}
		b.StartTimer()
		s, err := pool.Take(b.Context(), fmt.Sprint("c", i))
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		require.NoError(b, s.Destroy())
		b.StartTimer()
	}
}
