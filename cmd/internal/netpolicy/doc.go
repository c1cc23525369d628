// Package netpolicy shows network policies to people: what a policy means, which rule of
// which policy decides on a flow between two ends, and the flows that policies have dropped.
// Package policy defines the decisions.
package netpolicy
