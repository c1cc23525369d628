// Package netpolicy describes network policies for the commands and the daemon: the rules of a
// policy as text, the rules that decide on a flow between two addresses, and the flows that
// policies have dropped. Package policy defines the decisions.
package netpolicy
