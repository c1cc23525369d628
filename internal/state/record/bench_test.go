package record

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/portmap"
)

// benchStore returns a store on tmpfs if there is one, like a state directory.
func benchStore(b *testing.B) *Store {
	b.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "record")
	if err != nil {
		dir = b.TempDir()
	}
	b.Cleanup(func() { require.NoError(b, os.RemoveAll(dir)) })
	return Open(dir)
}

// typical returns a record of the usual size.
func typical(id string) *Record {
	r := sample(id)
	r.Attachments = r.Attachments[:1]
	r.Attachments[0].Config = bytes.Repeat([]byte(`{"type":"x","k":1}`), 60)
	return r
}

func BenchmarkPut(b *testing.B) {
	s, r := benchStore(b), typical("one")
	for b.Loop() {
		if err := s.Put(r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	s := benchStore(b)
	require.NoError(b, s.Put(typical("one")))
	for b.Loop() {
		if _, err := s.Get("one"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLock(b *testing.B) {
	s := benchStore(b)
	require.NoError(b, s.Put(typical("one")))
	for b.Loop() {
		unlock, err := s.Lock(b.Context(), "one")
		if err != nil {
			b.Fatal(err)
		}
		unlock()
	}
}

func BenchmarkEncode(b *testing.B) {
	r := typical("one")
	for b.Loop() {
		if _, err := encode(r); err != nil {
			b.Fatal(err)
		}
	}
}

// crowd adds records with two ports each, and returns another record without
// conflicts.
func crowd(b *testing.B, s *Store, size int) *Record {
	for i := range size {
		r := typical(fmt.Sprint("other-", i))
		r.Ports = []portmap.Mapping{
			{HostPort: 20000 + i, ContainerPort: 80, Protocol: "tcp"},
			{HostPort: 20000 + i, ContainerPort: 80, Protocol: "udp"},
		}
		require.NoError(b, s.Put(r))
	}
	r := typical("one")
	r.Ports = []portmap.Mapping{{HostPort: 80, Protocol: "tcp"}, {HostPort: 80, Protocol: "udp"}}
	return r
}

func BenchmarkClaimAndDelete(b *testing.B) {
	for _, size := range []int{0, 1000, 4000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := benchStore(b)
			r := crowd(b, s, size)
			require.NoError(b, s.Reserve(b.Context(), r, unwarned(b)))
			for b.Loop() {
				if err := errors.Join(s.Delete(r.ID), s.Reserve(b.Context(), r, unwarned(b))); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkReservations(b *testing.B) {
	for _, size := range []int{0, 4000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := benchStore(b)
			r := crowd(b, s, size)
			require.NoError(b, s.completeIndex(unwarned(b)))
			for b.Loop() {
				if err := s.Reserve(b.Context(), r, unwarned(b)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCompleteIndex measures the first reservation after the index was
// lost.
func BenchmarkCompleteIndex(b *testing.B) {
	s := benchStore(b)
	crowd(b, s, 4000)
	for b.Loop() {
		b.StopTimer()
		require.NoError(b, os.RemoveAll(string(s.index)))
		b.StartTimer()
		require.NoError(b, s.completeIndex(unwarned(b)))
	}
}

// BenchmarkList measures reading all records.
func BenchmarkList(b *testing.B) {
	s := benchStore(b)
	crowd(b, s, 1000)
	for b.Loop() {
		_, err := s.List()
		require.NoError(b, err)
	}
}

func unwarned(tb testing.TB) func(error) {
	return func(err error) {
		tb.Helper()
		tb.Error("warning:", err)
	}
}
