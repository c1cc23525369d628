package integration

import (
	"cmp"
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/sandbox"
)

// contract returns the tests that hold with and without a pool. TestContract runs them with
// pools: see host.pools.
func contract() map[string]contractTest {
	return map[string]contractTest{
		"TestAddressChangesHands":              {run: TestAddressChangesHands, bypasses: true}, // requests addresses
		"TestAdminChain":                       {run: TestAdminChain},
		"TestAutoChooses":                      {run: TestAutoChooses},
		"TestBesideDocker":                     {run: TestBesideDocker, always: true},
		"TestBesideFirewalld":                  {run: TestBesideFirewalld},
		"TestCollectLostInAnotherOrder":        {run: TestCollectLostInAnotherOrder, bypasses: true}, // two networks
		"TestCollectLostOfAllKinds":            {run: TestCollectLostOfAllKinds, bypasses: true},     // two networks
		"TestCollectLostWithoutConfiguration":  {run: TestCollectLostWithoutConfiguration, always: true},
		"TestCycles":                           {run: TestCycles},
		"TestEmbeddedNetwork":                  {run: TestEmbeddedNetwork, bypasses: true}, // requests an address
		"TestEmbeddedNetworkDamaged":           {run: TestEmbeddedNetworkDamaged, always: true},
		"TestEmbeddedNetworkWasABridge":        {run: TestEmbeddedNetworkWasABridge, always: true},
		"TestEngineChanges":                    {run: TestEngineChanges},
		"TestFirewalldLostRecord":              {run: TestFirewalldLostRecord},
		"TestForwardPolicyDrop":                {run: TestForwardPolicyDrop, always: true},
		"TestGatewayInAnotherTable":            {run: TestGatewayInAnotherTable},
		"TestGolden":                           {run: TestGolden, always: true},
		"TestHandover":                         {run: TestHandover, always: true},
		"TestIPv6AtOnce":                       {run: TestIPv6AtOnce, always: true},
		"TestIngressPolicy":                    {run: TestIngressPolicy},
		"TestIngressPolicyOfPtp":               {run: TestIngressPolicyOfPtp},
		"TestLoopbackIsTheHostsOwn":            {run: TestLoopbackIsTheHostsOwn},
		"TestLostRecordAndConfiguration":       {run: TestLostRecordAndConfiguration},
		"TestLostRecordOfANamedBackend":        {run: TestLostRecordOfANamedBackend},
		"TestLostRecordOfOtherNetworks":        {run: TestLostRecordOfOtherNetworks, bypasses: true}, // two networks
		"TestMTUIsConfigured":                  {run: TestMTUIsConfigured},
		"TestMTUOfTheDefaultRoute":             {run: TestMTUOfTheDefaultRoute, always: true},
		"TestMatrix":                           {run: TestMatrix},
		"TestMixedChain":                       {run: TestMixedChain, bypasses: true}, // a plugin binary
		"TestNetnsDeletedUnderALiveAllocation": {run: TestNetnsDeletedUnderALiveAllocation},
		"TestNoAddresses":                      {run: TestNoAddresses, always: true},
		"TestNoIPTables":                       {run: TestNoIPTables, always: true},
		"TestParallel":                         {run: TestParallel},
		"TestEmbeddedNetworkIsClosed":          {run: TestEmbeddedNetworkIsClosed, always: true},
		"TestPolicyBasic":                      {run: TestPolicyBasic, always: true},
		"TestPolicyEndsConnections":            {run: TestPolicyEndsConnections},
		"TestPolicyLost":                       {run: TestPolicyLost},
		"TestPolicyRefused":                    {run: TestPolicyRefused, always: true},
		"TestPolicyUpdate":                     {run: TestPolicyUpdate},
		"TestPortTaken":                        {run: TestPortTaken},
		"TestProgramMissingAtTeardown":         {run: TestProgramMissingAtTeardown},
		"TestReceivesIPv6AtOnce":               {run: TestReceivesIPv6AtOnce},
		"TestRecordLostAndProgramMissing":      {run: TestRecordLostAndProgramMissing},
		"TestOtherIPTablesAtTeardown":          {run: TestOtherIPTablesAtTeardown},
		"TestReleasedAddress":                  {run: TestReleasedAddress},
		"TestRepair":                           {run: TestRepair, always: true},
		"TestSecondNetworkFails":               {run: TestSecondNetworkFails, bypasses: true}, // two networks
		"TestSetupAgain":                       {run: TestSetupAgain, always: true},
		"TestStateLost":                        {run: TestStateLost},
		"TestStream":                           {run: TestStream},
		"TestThingsGoneBeforeTeardown":         {run: TestThingsGoneBeforeTeardown, always: true},
		"TestAttach":                           {run: TestAttach, always: true},
		"TestUpdate":                           {run: TestUpdate, always: true},
		"TestUpdateIsAtomic":                   {run: TestUpdateIsAtomic},
		"TestUpdateBandwidth":                  {run: TestUpdateBandwidth, bypasses: true}, // a limited network cannot have a pool
		"TestTwoNetworks":                      {run: TestTwoNetworks, bypasses: true},     // two networks
	}
}

// contractTest is a test that runs with pools, too.
type contractTest struct {
	run func(*testing.T)
	// always makes make test run the test with pools; make pools runs all of them.
	always bool
	// bypasses reports that all allocations request what no slot has, or that their
	// network cannot have a pool.
	bypasses bool
}

const (
	ofRuntimes = "a runtime makes the network namespaces"
	ofDaemons  = "the daemon is tested, and its pools by TestPool of cmd/allocnetd and TestHealPool"
	ofPools    = "uses pools itself"
	noSetup    = "sets nothing up"
	byBinaries = "plugin binaries cannot have a pool"
)

// withoutPools are the other tests, each with the reason.
var withoutPools = map[string]string{
	"TestPolicyFlood": "an allocation sends before its Setup", "TestPolicyOfNetworks": "allocations are attached to further networks",
	"TestPolicyBypass": "as TestPolicyBasic", "TestPolicyTwoStateDirectories": "a second state directory",
	"TestPolicyMatrix": "many allocations, with daemons", "TestPolicyRandom": "many allocations", "TestPolicyUpdateKilled": "processes with Configurators of their own", "TestPolicyLifeKilled": "processes with Configurators of their own",
	"TestContract": ofPools, "TestNothingIsMissingInContract": noSetup,
	"TestDaemonTurns": ofRuntimes, "TestDaemonCnitool": ofRuntimes, "TestDaemonSharedPorts": ofRuntimes, "TestDaemonVersions": ofRuntimes,
	"TestDaemonPicksUp": ofRuntimes, "TestDaemonCompositions": ofRuntimes, "TestDaemonPathOfTheRuntime": ofRuntimes, "TestDaemonNetnsOverride": ofRuntimes,
	"TestDaemonCrowd": ofRuntimes, "TestDaemonDropIns": ofRuntimes, "TestDaemonHangs": ofRuntimes, "TestDaemonHangsOverAnADD": ofRuntimes,
	"TestDaemonGoCNI": ofRuntimes, "TestDaemonAsItsOwnPlugin": ofRuntimes, "TestNoAddressesByRuntimes": ofRuntimes, "TestPodman": ofRuntimes, "TestNerdctl": ofRuntimes,
	"TestRuntimesNetnsGone": ofRuntimes,
	"TestDaemonSocketTaken": ofDaemons, "TestDaemonNobodyReads": ofDaemons, "TestDaemonCommandLine": ofDaemons, "TestDaemonEvents": ofDaemons,
	"TestDaemonRig": ofDaemons, "TestDaemonKilled": ofDaemons, "TestDaemonManager": ofDaemons, "TestDaemonPrimaryBroken": ofDaemons,
	"TestDaemonPrimaryGoes": ofDaemons, "TestDaemonReadinessFile": ofDaemons, "TestDaemonReloadUnderLoad": ofDaemons,
	"TestDaemonPrimaryUnusable": ofDaemons, "TestDaemonSettingsOfItsOwn": ofDaemons, "TestDaemonStateFillsUp": ofDaemons,
	"TestDaemonStateUnwritable": ofDaemons, "TestDaemonNewerRecord": ofDaemons, "TestDaemonClockSetBack": ofDaemons,
	"TestHeal": ofDaemons, "TestHealOff": ofDaemons, "TestHealDrift": ofDaemons, "TestHealOtherBackends": ofDaemons, "TestHealFirewalld": ofDaemons,
	"TestHealReportsWhatIsLost": ofDaemons, "TestHealInsistingTool": ofDaemons, "TestHealLostNotifications": ofDaemons,
	"TestHealIgnoresOrdinaryWork": ofDaemons,
	"TestPool":                    ofPools, "TestPoolKilled": ofPools, "TestPoolSame": ofPools, "TestPoolDamaged": ofPools, "TestPoolOfAnotherTime": ofPools, "TestHealPool": ofPools, "TestHealPoolUnderLoad": ofPools,
	"TestBird":                   "its other processes set the allocations up",
	"TestFirewalldUnreachable":   "on a host with firewalld, no network can have a pool",
	"TestReboot":                 "its other processes set the allocations up",
	"TestKilled":                 "its other processes expect the network namespace; TestPoolKilled is the same with a pool",
	"TestSwappedNetns":           "a path outside of the directory of network namespaces",
	"TestNetnsGoneAndSpoofCheck": byBinaries, "TestDelFails": byBinaries,
	"TestInstall": noSetup, "TestInstallOnARunningHost": noSetup, "TestBuildInAnotherUsersCheckout": noSetup, "TestShimFlags": noSetup, "TestReferenceConflists": "checks the files; TestMatrix has their chains",
}

// TestContract runs the integration tests once more, with allocations from pools: make test
// some of them, make pools all.
func TestContract(t *testing.T) {
	tests := contract()
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		test := tests[name]
		t.Run(name, func(t *testing.T) {
			if !test.always && os.Getenv("ALLOCNET_POOLS") == "" {
				t.Skip("make pools runs it")
			}
			test.run(t)
		})
	}
}

// TestNothingIsMissingInContract: every test of this package runs with pools, or says why not.
func TestNothingIsMissingInContract(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	var tests []string
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range f.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" {
				tests = append(tests, f.Name.Name)
			}
		}
	}
	for _, name := range tests {
		_, with := contract()[name]
		_, without := withoutPools[name]
		require.True(t, with != without, "%s is to be in contract or in withoutPools", name)
	}
	require.Len(t, tests, len(contract())+len(withoutPools), "a test that does not exist")
}

// pools makes a host take the network namespaces of its allocations from pools. There is one
// pool for each network that allocations request alone.
type pools struct {
	h        *host
	bypasses bool

	mu    sync.Mutex
	size  int
	open  []configurator.Pool
	mine  map[*configurator.Configurator]bool // those of the tests have no pools
	ids   []string                            // of the allocations
	ready bool                                // whether there was a slot for a Setup
	taken uint64
	fresh map[string][]func() // what to run in new namespaces, by ID
}

// poolSize is small, so that a network with few addresses still has some for others.
const poolSize = 2

// contractOf returns the entry in contract of a test that runs with pools.
func contractOf(t testing.TB) (test contractTest, pooled bool) {
	name, found := strings.CutPrefix(t.Name(), "TestContract/")
	name, _, _ = strings.Cut(name, "/")
	return contract()[name], found
}

// withPools returns the engines and backends of a test: with pools, the native ones only.
func withPools(t testing.TB, ways []way) []way {
	if _, pooled := contractOf(t); !pooled {
		return ways
	}
	return slices.DeleteFunc(slices.Clone(ways), func(w way) bool { return w.engine == configurator.EngineExec })
}

// usePools makes the host use pools if the test is to run with them.
func (h *host) usePools() {
	test, pooled := contractOf(h.t)
	if !pooled || h.cfg.Engine == configurator.EngineExec {
		return
	}
	p := &pools{h: h, bypasses: test.bypasses, size: poolSize, mine: map[*configurator.Configurator]bool{h.Configurator: true}, fresh: map[string][]func(){}}
	h.pools = p
	h.t.Cleanup(func() {
		p.close()
		if !h.t.Failed() && p.ready && !p.bypasses {
			require.Positive(h.t, p.taken, "no allocation was taken from a pool")
		}
	})
}

// alloc returns an allocation whose namespace Setup makes.
func (p *pools) alloc(id string) configurator.Allocation {
	p.ids = append(p.ids, id)
	return configurator.Allocation{ID: id, Netns: filepath.Join(sandbox.DefaultDir, id), OwnNetns: true}
}

// inNew runs a function now if the namespace of the allocation exists, and otherwise after
// every Setup that makes it.
func (h *host) inNew(a configurator.Allocation, do func()) {
	if h.pools == nil {
		do()
		return
	}
	h.pools.mu.Lock()
	defer h.pools.mu.Unlock()
	h.pools.fresh[a.ID] = append(h.pools.fresh[a.ID], do)
}

// Setup is that of the configurator. In a test with pools, it waits for a slot first.
func (h *host) Setup(ctx context.Context, a configurator.Allocation) (*configurator.Status, error) {
	if h.pools == nil || !a.OwnNetns {
		return h.Configurator.Setup(ctx, a)
	}
	h.useSlot(a)
	s, err := h.Configurator.Setup(ctx, a)
	if err == nil && s.Created {
		h.pools.mu.Lock()
		do := h.pools.fresh[a.ID]
		h.pools.mu.Unlock()
		for _, f := range do {
			f()
		}
	}
	return s, err
}

// container returns the container ID of an allocation that is set up. An allocation from a pool
// has that of its slot.
func (h *host) container(a configurator.Allocation) string {
	h.t.Helper()
	r, err := h.Get(h.ctx(), a.ID)
	require.NoError(h.t, err)
	return cmp.Or(r.ContainerID, a.ID)
}

// useSlot waits until there is a slot for an allocation, unless there cannot be one.
func (h *host) useSlot(a configurator.Allocation) {
	h.t.Helper()
	p := h.pools
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mine[h.Configurator] {
		return
	}
	p.prepare(a)
	if h.Configurator != p.h.Configurator {
		h.Configurator = p.h.Configurator
	}
}

// withoutSlots removes the slots until the next Setup.
func (h *host) withoutSlots() {
	h.t.Helper()
	if p := h.pools; p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.closeLocked()
		p.open = nil
	}
}

// oneSlot makes the pools have one slot at a time.
func (h *host) oneSlot() {
	if h.pools != nil {
		h.pools.size = 1
	}
}

// prepare waits until the pool for an allocation has a slot, or cannot have one.
func (p *pools) prepare(a configurator.Allocation) {
	p.h.t.Helper()
	networks := slices.Concat(a.Networks, p.h.cfg.Networks)
	if len(a.Networks) > 1 || len(a.Networks) == 0 && len(networks) > 1 || len(a.Conflists) > 0 {
		return
	}
	name := p.h.cfg.Network
	if len(networks) > 0 {
		name = networks[0]
	}
	of := configurator.Pool{Network: name, Size: p.size}
	if !slices.Contains(p.open, of) {
		p.reopen(of)
	}
	require.Eventually(p.h.t, func() bool {
		for _, s := range p.h.Pools() {
			if s.Network == name {
				p.ready = p.ready || s.Ready > 0
				return s.Ready > 0 || s.Err != nil
			}
		}
		return false
	}, 20*time.Second, time.Millisecond, "no slot")
}

// reopen opens one more pool, with a new configurator.
func (p *pools) reopen(more configurator.Pool) {
	p.h.t.Helper()
	p.closeLocked()
	p.open = append(p.open, more)
	cfg := p.h.cfg
	cfg.Pools = p.open
	var err error
	p.h.Configurator, err = configurator.New(cfg)
	require.NoError(p.h.t, err)
	p.mine[p.h.Configurator] = true
}

// close removes the slots that no allocation has taken.
func (p *pools) close() {
	p.h.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeLocked()
	for _, id := range p.ids {
		path := filepath.Join(sandbox.DefaultDir, id)
		if _, err := os.Lstat(path); err == nil { // the test had the network alone removed
			require.NoError(p.h.t, p.h.Teardown(context.Background(), configurator.Allocation{ID: id, OwnNetns: true, Wait: true}))
			require.NoError(p.h.t, sandbox.Destroy(path))
		}
	}
}

func (p *pools) closeLocked() {
	p.h.t.Helper()
	for _, s := range p.h.Pools() {
		p.taken += s.Taken
	}
	require.NoError(p.h.t, p.h.Configurator.Close())
}
