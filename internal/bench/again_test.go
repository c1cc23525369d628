package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/sandbox"
)

func TestAgain(t *testing.T) {
	skip.InShort(t)
	b := &bench{environment: *testEnvironment(t), size: size{again: 1}, report: &Report{}}
	require.NoError(t, b.again(t.Context()))
	require.NoError(t, sandbox.Destroy(b.all[0].netns))
	for _, title := range []string{againTitle, unknownTitle} {
		for _, name := range []string{nativeName, daemonName, allocnetName, referenceName} {
			m, ok := b.report.find(key(title, name))
			require.True(t, ok, "%s, %s", title, name)
			require.Equal(t, 1, m.Samples)
		}
	}
}

func TestCollect(t *testing.T) {
	b := &bench{environment: *testEnvironment(t), size: size{collect: 3, collects: 1}, report: &Report{}}
	require.NoError(t, b.collect(t.Context()))
	for _, s := range b.all {
		require.NoError(t, sandbox.Destroy(s.netns))
	}
	for _, name := range []string{baselineName, nativeName} {
		m, ok := b.report.find(key("GC of 3", name))
		require.True(t, ok, name)
		require.Positive(t, m.Median)
	}
}
