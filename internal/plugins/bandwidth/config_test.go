package bandwidth

import (
	"errors"
	"math"
	"math/big"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

func TestIfbName(t *testing.T) {
	require.Equal(t, "bwp3cd1b8f009eb", ifbName("net", "alloc"))
}

// TestBurst: the kernel must let the whole burst through, but hardly more.
func TestBurst(t *testing.T) {
	for _, test := range []struct{ rate, burst uint64 }{
		{1, 1}, {1000, 1000}, {125_000, 2_000}, {1_250_000_000, 12_600}, {12_500_000_000, 1_514},
		{5_000_000_000, 65_536}, {125_000_000, math.MaxUint32 - 1}, {20_000_000_000_000, 3},
	} {
		b := fill(test.rate, test.burst)
		ns := new(big.Int).Mul(big.NewInt(int64(b.burst)), big.NewInt(tick))
		bytes := new(big.Int).Mul(ns, big.NewInt(int64(test.rate)))
		bytes.Div(bytes, big.NewInt(1e9))
		require.GreaterOrEqual(t, bytes.Uint64(), test.burst, test)
		require.LessOrEqual(t, bytes.Uint64(), test.burst+test.rate/ticksPerSecond+1, test)
	}
}

func TestSaturation(t *testing.T) {
	require.Equal(t, bucket{125_000, math.MaxUint32, 3125 + 268_435_455}, fill(125_000, 268_435_455))
	require.Equal(t, uint32(math.MaxUint32), fill(400_000_000_000, 10).limit)
	require.Equal(t, uint32(math.MaxUint32), fill(4000, math.MaxUint32-1).limit)
}

func TestDiffers(t *testing.T) {
	b := fill(1_250_000_000, 12_600)
	for name, test := range map[string]struct {
		have netlink.Tbf
		want string
	}{
		"same":           {netlink.Tbf{Rate: b.rate, Limit: b.limit, Buffer: b.burst}, ""},
		"in whole us":    {netlink.Tbf{Rate: b.rate, Limit: b.limit, Buffer: 156}, ""},
		"smaller burst":  {netlink.Tbf{Rate: b.rate, Limit: b.limit, Buffer: b.burst - 17}, "the burst is 141 ticks, not 158"},
		"greater burst":  {netlink.Tbf{Rate: b.rate, Limit: b.limit, Buffer: b.burst + 1}, "the burst is 159 ticks, not 158"},
		"other limit":    {netlink.Tbf{Rate: b.rate, Limit: b.limit + 1, Buffer: b.burst}, "the limit is"},
		"greater rate":   {netlink.Tbf{Rate: b.rate + 1, Limit: b.limit, Buffer: b.burst}, "the rate is"},
		"another's rate": {netlink.Tbf{}, "the rate is"},
	} {
		t.Run(name, func(t *testing.T) {
			err := b.differs(&test.have)
			if test.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.want)
			}
		})
	}
	full := fill(125_000, 268_435_455)
	require.NoError(t, full.differs(&netlink.Tbf{Rate: full.rate, Limit: full.limit, Buffer: 3_489_660_803}))
}

func TestBadLimits(t *testing.T) {
	for want, l := range map[string]Limits{
		"ingressRate and ingressBurst: a rate needs a burst":                           {IngressRate: 8, EgressRate: 8, EgressBurst: 8},
		"egressRate and egressBurst: a burst needs a rate":                             {EgressBurst: 8},
		"egressRate and egressBurst: less than a byte":                                 {EgressBurst: 7, EgressRate: 8},
		"ingressRate and ingressBurst: a burst of 34359738360 bits is not below 4 GiB": {IngressRate: 1, IngressBurst: 8 * math.MaxUint32},
	} {
		_, _, err := l.buckets()
		require.EqualError(t, err, want)
	}
}

func TestUnknownKeys(t *testing.T) {
	for conf, key := range map[string]string{
		`{"shapedSubnets": ["10.0.0.0/8"]}`:                                            "shapedSubnets",
		`{"unshapedSubnets": ["10.0.0.0/8"], "ingressRate": 8}`:                        "unshapedSubnets",
		`{"runtimeConfig": {"bandwidth": {"ingressRate": 8, "shapedSubnets": ["x"]}}}`: "runtimeConfig.bandwidth.shapedSubnets",
	} {
		p, err := New([]byte(conf))
		var unknown *sdk.UnknownKeyError
		require.ErrorAs(t, err, &unknown, conf)
		require.Equal(t, key, unknown.Key)
		require.NotNil(t, p)
	}
	p, err := New([]byte(`{"later": 1, "runtimeConfig": {"bandwidth": {"egressBurst": 8, "egressRate": 9}}}`))
	require.True(t, sdk.IsUnknownKey(err))
	require.Equal(t, Limits{EgressBurst: 8, EgressRate: 9}, p.(*bandwidth).limit, "the rest is understood")
}

func TestKnownKeys(t *testing.T) {
	_, err := New([]byte(`{"cniVersion": "1.0.0", "name": "n", "type": "bandwidth", "capabilities": {"bandwidth": true},
		"ipam": {}, "dns": {}, "args": {"x": 1}, "runtimeConfig": {"bandwidth": {"ingressRate": 1, "ingressBurst": 2,
		"egressRate": 3, "egressBurst": 4}, "mac": "x"}, "prevResult": {}, "cni.dev/valid-attachments": [],
		"ingressRate": 1, "ingressBurst": 2, "egressRate": 3, "egressBurst": 4}`))
	require.NoError(t, err)
}

func TestUndecodable(t *testing.T) {
	for _, conf := range []string{
		``, `[]`, `{"ingressRate": -1}`, `{"ingressRate": "1"}`, `{"x": 1, "egressBurst": 1.5}`, `{"runtimeConfig": 1}`,
		`{"runtimeConfig": {"bandwidth": 1}}`, `{"runtimeConfig": {"bandwidth": {"ingressRate": "1"}}}`,
	} {
		_, err := New([]byte(conf))
		var coded *types.Error
		require.ErrorAs(t, err, &coded, conf)
		require.Equal(t, types.ErrDecodingFailure, coded.Code)
	}
}

func FuzzNew(f *testing.F) {
	f.Add([]byte(`{"cniVersion": "1.0.0", "ingressRate": 8, "ingressBurst": 9, "egressRate": 0}`))
	f.Add([]byte(`{"runtimeConfig": {"bandwidth": {"egressRate": 18446744073709551615, "egressBurst": 34359738359}}}`))
	f.Add([]byte(`{"shapedSubnets": [], "runtimeConfig": {"bandwidth": {"x": 1}}}`))
	f.Fuzz(func(t *testing.T, conf []byte) {
		p, err := New(conf)
		if err != nil && !sdk.IsUnknownKey(err) {
			var coded *types.Error
			require.True(t, errors.As(err, &coded), "%v", err)
			return
		}
		b := p.(*bandwidth)
		_ = b.checkVersion()
		ingress, egress, err := b.limit.buckets()
		for _, bucket := range []*bucket{ingress, egress} {
			if bucket != nil {
				require.NoError(t, err)
				require.NotZero(t, bucket.rate)
				require.NotZero(t, bucket.burst)
				require.NotZero(t, bucket.limit)
			}
		}
	})
}
