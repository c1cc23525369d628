package client

import (
	"context"
	"errors"
	"time"
)

// HostDenials are the flows whose packets the network policies of a host have dropped within the
// last five minutes.
type HostDenials struct {
	Time time.Time `json:"time"` // of the reading
	// Flows are those with the most packets first.
	Flows []DeniedFlow `json:"flows"`
	// Omitted is the number of further flows.
	Omitted int `json:"omitted,omitempty"`
	// Unlisted are the packets of flows for which the list of their allocation, or that of the host, had
	// no room. Each allocation that has some is in it.
	Unlisted []UnlistedDenials `json:"unlisted,omitempty"`
	// Problems are what could not be read, with the reasons.
	Problems []string `json:"problems"`
}

// DeniedFlow is a flow whose packets a network policy of an allocation has dropped.
type DeniedFlow struct {
	ID        string `json:"id"`        // of the allocation whose policy it was
	Direction string `json:"direction"` // ingress or egress, seen from the allocation
	Address   string `json:"address"`   // of the allocation
	Peer      string `json:"peer"`      // the address of the other end
	// PeerID is the ID of the allocation that has the address Peer; "" if none has it.
	PeerID   string `json:"peerID,omitempty"`
	Protocol string `json:"protocol"` // a name as in a policy, or a number
	Port     int    `json:"port"`     // the destination port; of ICMP the type
	// Rule is the rule that denies such a flow now, as policy.Decision has it, and Network the
	// network whose policy has the rule; "" for the policy of the allocation. Rule is "" if
	// the policies, the labels or the peer have changed since, so that none denies it.
	Rule    string `json:"rule,omitempty"`
	Network string `json:"network,omitempty"`
	// Packets is the number of dropped packets, and Bytes their size.
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// UnlistedDenials are packets that a network policy of an allocation has dropped, and whose flows are not listed.
type UnlistedDenials struct {
	ID        string `json:"id"`        // of the allocation whose policy it was
	Direction string `json:"direction"` // ingress or egress, seen from the allocation
	Packets   uint64 `json:"packets"`
}

// Denials returns the flows that the network policies of the daemon's host have dropped.
func (c *Client) Denials(ctx context.Context) (*HostDenials, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var d HostDenials
	err := c.call(ctx, exchange{"GET", "/v1/denials", nil, &d, func() error { return verifyDenials(&d) }})
	if err != nil {
		return nil, err
	}
	return &d, nil
}

func verifyDenials(d *HostDenials) error {
	if d.Time.IsZero() || d.Flows == nil {
		return errors.New("denials without a time or flows")
	}
	return nil
}
