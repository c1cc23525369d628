package client

import (
	"context"
	"errors"
	"time"
)

// HostTraffic is what the allocations of a host have received and sent.
type HostTraffic struct {
	Time        time.Time           `json:"time"` // of the reading
	Allocations []AllocationTraffic `json:"allocations"`
	// Problems are what could not be read, with the reasons.
	Problems []string `json:"problems"`
}

// AllocationTraffic is what an allocation has received and sent since it was set up.
type AllocationTraffic struct {
	ID         string             `json:"id"`
	Interfaces []InterfaceTraffic `json:"interfaces"`
	// Connections is the number of connections from and to its addresses that the kernel
	// tracks. It is nil if they were not counted, because the host has too many.
	Connections *int `json:"connections,omitempty"`
}

// InterfaceTraffic is the traffic of one interface of an allocation, as the host's end of
// its veth counts it. Interfaces without such an end, as macvlan, are missing.
type InterfaceTraffic struct {
	Network   string   `json:"network"`
	Interface string   `json:"interface"`
	Received  Counters `json:"received"`
	Sent      Counters `json:"sent"`
}

// Counters are numbers of packets, and of their bytes. Dropped are packets that the link
// dropped, and Denied those that network policies dropped. Those that other rules or bandwidth
// limits drop are not among them.
type Counters struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
	Dropped uint64 `json:"dropped"`
	Denied  uint64 `json:"denied"`
}

// HostTraffic returns what the allocations of the daemon's host have received and sent.
func (c *Client) HostTraffic(ctx context.Context) (*HostTraffic, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var t HostTraffic
	err := c.call(ctx, exchange{"GET", "/v1/traffic", nil, &t, func() error { return verifyHostTraffic(&t) }})
	if err != nil {
		return nil, err
	}
	return &t, nil
}

func verifyHostTraffic(t *HostTraffic) error {
	if t.Time.IsZero() || t.Allocations == nil {
		return errors.New("traffic without a time or allocations")
	}
	return nil
}
