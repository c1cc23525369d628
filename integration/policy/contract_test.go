package policy

import (
	"testing"

	"github.com/allocnet/allocnet/internal/testing/testbed"
)

// contract returns the tests that hold with and without a pool: see testbed.Contract.
func contract() testbed.Contract {
	return testbed.Contract{
		"TestAllocationIsNotAnAddress":        {Run: TestAllocationIsNotAnAddress},
		"TestConnectionsFromBefore":           {Run: TestConnectionsFromBefore, Always: true},
		"TestDenialsAreFair":                  {Run: TestDenialsAreFair},
		"TestDenialsOfThePeer":                {Run: TestDenialsOfThePeer},
		"TestDiscoveryBetweenNeighboursOnly":  {Run: TestDiscoveryBetweenNeighboursOnly},
		"TestAllocationsOnOtherLinks":         {Run: TestAllocationsOnOtherLinks},
		"TestEmbeddedNetworkIsClosed":         {Run: TestEmbeddedNetworkIsClosed, Always: true},
		"TestFragmentsWithinFragments":        {Run: TestFragmentsWithinFragments},
		"TestHostByGroupAddresses":            {Run: TestHostByGroupAddresses},
		"TestHostSendsForOthers":              {Run: TestHostSendsForOthers},
		"TestHostIsNotAnAddress":              {Run: TestHostIsNotAnAddress},
		"TestICMPErrors":                      {Run: TestICMPErrors},
		"TestIngressPolicy":                   {Run: TestIngressPolicy},
		"TestIngressPolicyOfPtp":              {Run: TestIngressPolicyOfPtp},
		"TestInvalidPacketsStay":              {Run: TestInvalidPacketsStay},
		"TestManyNamespaces":                  {Run: TestManyNamespaces},
		"TestNamedPorts":                      {Run: TestNamedPorts},
		"TestPolicyBasic":                     {Run: TestPolicyBasic, Always: true},
		"TestPolicyEndsConnections":           {Run: TestPolicyEndsConnections},
		"TestPolicyEndsConnectionsOfTheLink":  {Run: TestPolicyEndsConnectionsOfTheLink},
		"TestPolicyEndsConnectionsBehindIt":   {Run: TestPolicyEndsConnectionsBehindIt},
		"TestPolicyEndsDatagrams":             {Run: TestPolicyEndsDatagrams},
		"TestPolicyKeepsConnectionsOfTheHost": {Run: TestPolicyKeepsConnectionsOfTheHost},
		"TestPolicyLost":                      {Run: TestPolicyLost},
		"TestPolicyOfRedirectedMetadata":      {Run: TestPolicyOfRedirectedMetadata},
		"TestPolicyRefused":                   {Run: TestPolicyRefused, Always: true},
		"TestPolicyUpdate":                    {Run: TestPolicyUpdate},
		"TestPolicyWithoutIPv6":               {Run: TestPolicyWithoutIPv6},
		"TestPublishedOnly":                   {Run: TestPublishedOnly},
		"TestShortPacketsAreListed":           {Run: TestShortPacketsAreListed},
	}
}

const processes = "processes with Configurators of their own"

// withoutPools are the other tests, each with the reason.
var withoutPools = map[string]string{
	"TestContract":                   "uses pools itself",
	"TestNothingIsMissingInContract": "sets nothing up",
	"TestNoUntrackedTCP":             "as TestPolicyOfNetworks",
	"TestNoHostWithoutEntry":         "as TestPolicyOfNetworks",
	"TestPolicyAfterDamage":          "Configurators of its own",
	"TestConnectionsOfDamageEnd":     "as TestPolicyAfterDamage",
	"TestBridgeRulesAreRepaired":     "as TestPolicyAfterDamage",
	"TestAttachOfOpenNetwork":        "as TestPolicyOfNetworks",
	"TestOpenNetworkIsNoWayOut":      "as TestPolicyOfNetworks",
	"TestPolicyOpensNoWayOut":        "as TestPolicyOfNetworks",
	"TestPolicyBypass":               "as TestPolicyBasic",
	"TestPolicyFlood":                "an allocation sends before its Setup",
	"TestPolicyFloodOfASelected":     "as TestPolicyFlood",
	"TestPolicyFloodOfAnAllocation":  "as TestPolicyFlood",
	"TestPolicyFloodWithoutTable":    "as TestPolicyFlood",
	"TestPolicyGroupFrames":          "sockets in a namespace before its Setup",
	"TestPolicyLifeKilled":           processes,
	"TestPolicyMatrix":               "many allocations, with daemons",
	"TestPolicyOfNetworks":           "allocations are attached to further networks",
	"TestPolicyOfSeveralNetworks":    "as TestPolicyOfNetworks",
	"TestPolicyRandom":               "many allocations",
	"TestPolicyTwoStateDirectories":  "a second state directory",
	"TestPolicyUpdateKilled":         processes,
}

// TestContract runs the tests once more, with allocations from pools.
func TestContract(t *testing.T) { contract().Run(t) }

// TestNothingIsMissingInContract: every test of this package runs with pools, or says why not.
func TestNothingIsMissingInContract(t *testing.T) { contract().RequireComplete(t, withoutPools) }
