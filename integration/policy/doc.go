// Package policy holds the tests of network policies on a real kernel, with real
// packets of every protocol: enforced from the first packet on, while policies
// change, and after kills. See the package integration.
package policy
