package integration

import (
	"testing"

	"github.com/allocnet/allocnet/internal/testing/testbed"
)

// contract returns the tests that hold with and without a pool. TestContract runs them with
// pools: see testbed.Contract.
func contract() testbed.Contract {
	return testbed.Contract{
		"TestAddressChangesHands":              {Run: TestAddressChangesHands, Bypasses: true}, // requests addresses
		"TestAdminChain":                       {Run: TestAdminChain},
		"TestAutoChooses":                      {Run: TestAutoChooses},
		"TestBesideDocker":                     {Run: TestBesideDocker},
		"TestBesideFirewalld":                  {Run: TestBesideFirewalld},
		"TestCollectLostInAnotherOrder":        {Run: TestCollectLostInAnotherOrder, Bypasses: true}, // two networks
		"TestCollectLostOfAllKinds":            {Run: TestCollectLostOfAllKinds, Bypasses: true},     // two networks
		"TestCollectLostWithoutConfiguration":  {Run: TestCollectLostWithoutConfiguration, Always: true},
		"TestCycles":                           {Run: TestCycles},
		"TestDefaultRouteStays":                {Run: TestDefaultRouteStays},
		"TestEmbeddedNetwork":                  {Run: TestEmbeddedNetwork, Bypasses: true}, // requests an address
		"TestEmbeddedNetworkDamaged":           {Run: TestEmbeddedNetworkDamaged, Always: true},
		"TestEmbeddedNetworkWasABridge":        {Run: TestEmbeddedNetworkWasABridge, Always: true},
		"TestEngineChanges":                    {Run: TestEngineChanges},
		"TestFirewalldLostRecord":              {Run: TestFirewalldLostRecord},
		"TestForwardPolicyDrop":                {Run: TestForwardPolicyDrop, Always: true},
		"TestForwardingIsRestored":             {Run: TestForwardingIsRestored},
		"TestForwardingOffByDefault":           {Run: TestForwardingOffByDefault},
		"TestGatewayInAnotherTable":            {Run: TestGatewayInAnotherTable},
		"TestGolden":                           {Run: TestGolden},
		"TestHandover":                         {Run: TestHandover, Always: true},
		"TestIPv6IsEnabledAgain":               {Run: TestIPv6IsEnabledAgain},
		"TestIPv6AtOnce":                       {Run: TestIPv6AtOnce, Always: true},
		"TestLoopbackIsTheHostsOwn":            {Run: TestLoopbackIsTheHostsOwn},
		"TestLostRecordAndConfiguration":       {Run: TestLostRecordAndConfiguration},
		"TestLostRecordOfANamedBackend":        {Run: TestLostRecordOfANamedBackend},
		"TestLostRecordOfOtherNetworks":        {Run: TestLostRecordOfOtherNetworks, Bypasses: true}, // two networks
		"TestMTUIsConfigured":                  {Run: TestMTUIsConfigured},
		"TestMTUOfTheDefaultRoute":             {Run: TestMTUOfTheDefaultRoute},
		"TestMatrix":                           {Run: TestMatrix},
		"TestMixedChain":                       {Run: TestMixedChain, Bypasses: true}, // a plugin binary
		"TestNetnsDeletedUnderALiveAllocation": {Run: TestNetnsDeletedUnderALiveAllocation},
		"TestNoAddresses":                      {Run: TestNoAddresses, Always: true},
		"TestNoIPTables":                       {Run: TestNoIPTables, Always: true},
		"TestParallel":                         {Run: TestParallel},
		"TestPortTaken":                        {Run: TestPortTaken},
		"TestProgramMissingAtTeardown":         {Run: TestProgramMissingAtTeardown},
		"TestReceivesIPv6AtOnce":               {Run: TestReceivesIPv6AtOnce},
		"TestRecordLostAndProgramMissing":      {Run: TestRecordLostAndProgramMissing},
		"TestReleasedAddress":                  {Run: TestReleasedAddress},
		"TestRepair":                           {Run: TestRepair, Always: true},
		"TestSecondNetworkFails":               {Run: TestSecondNetworkFails, Bypasses: true}, // two networks
		"TestServiceAddresses":                 {Run: TestServiceAddresses},
		"TestSetupAgain":                       {Run: TestSetupAgain, Always: true},
		"TestStateLost":                        {Run: TestStateLost},
		"TestStream":                           {Run: TestStream},
		"TestThingsGoneBeforeTeardown":         {Run: TestThingsGoneBeforeTeardown, Always: true},
		"TestAttach":                           {Run: TestAttach, Always: true},
		"TestUpdate":                           {Run: TestUpdate, Always: true},
		"TestUpdateIsAtomic":                   {Run: TestUpdateIsAtomic},
		"TestUpdateBandwidth":                  {Run: TestUpdateBandwidth, Bypasses: true}, // a limited network cannot have a pool
		"TestTwoNetworks":                      {Run: TestTwoNetworks, Bypasses: true},     // two networks
	}
}

const (
	ofPools    = "uses pools itself"
	noSetup    = "sets nothing up"
	byBinaries = "plugin binaries cannot have a pool"
	waiting    = "an allocation that may wait for host ports takes no slot"
)

// withoutPools are the other tests, each with the reason.
var withoutPools = map[string]string{
	"TestOtherIPTablesAtTeardown":      "a network with this backend has no pool; the record of a slot that is tried while iptables is replaced stays until Recover",
	"TestContract":                     ofPools,
	"TestNothingIsMissingInContract":   noSetup,
	"TestPool":                         ofPools,
	"TestPoolKilled":                   ofPools,
	"TestPoolNeighbours":               ofPools,
	"TestPoolSame":                     ofPools,
	"TestPoolDamaged":                  ofPools,
	"TestPoolOfAnotherTime":            ofPools,
	"TestSuccessor":                    waiting,
	"TestSuccessorAfterAFlush":         waiting,
	"TestSuccessorOfOneAddress":        waiting,
	"TestSuccessorGetsEveryConnection": waiting,
	"TestSuccessorIsUpdated":           waiting,
	"TestBird":                         "its other processes set the allocations up",
	"TestFirewalldUnreachable":         "on a host with firewalld, no network can have a pool",
	"TestReboot":                       "its other processes set the allocations up",
	"TestKilled":                       "its other processes expect the network namespace; TestPoolKilled is the same with a pool",
	"TestSwappedNetns":                 "a path outside of the directory of network namespaces",
	"TestNetnsGoneAndSpoofCheck":       byBinaries,
	"TestDelFails":                     byBinaries,
	"TestReferenceConflists":           "checks the files; TestMatrix has their chains",
	"TestDelOfDropInsFails":            byBinaries,
	"TestSecondDefaultRoute":           "several networks, plugin binaries, and allocations that share a namespace; TestDefaultRouteStays attaches to one from a pool",
}

// TestContract runs the tests once more, with allocations from pools.
func TestContract(t *testing.T) { contract().Run(t) }

// TestNothingIsMissingInContract: every test of this package runs with pools, or says why not.
func TestNothingIsMissingInContract(t *testing.T) { contract().RequireComplete(t, withoutPools) }
