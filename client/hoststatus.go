package client

import (
	"context"
	"errors"
	"time"

	"github.com/allocnet/allocnet"
)

// HostStatus is an overview of a host: what HostStatus of a Client returns.
type HostStatus struct {
	// Daemon is nil if the overview was made without the daemon.
	Daemon *DaemonStatus `json:"daemon,omitempty"`
	// Ready reports whether Setups can be expected to work; nil if that is not known. NotReady has the
	// reasons if not. Unlike for [Client.Ready], a host without a default network is ready if its embedded
	// network is.
	Ready    *bool    `json:"ready,omitempty"`
	NotReady []string `json:"notReady,omitempty"`
	// Engine is the engine of the settings.
	Engine   allocnet.Engine `json:"engine"`
	Networks []NetworkStatus `json:"networks"`
	// Skipped are the files of the configuration directory that are not active, with the
	// reasons.
	Skipped     []string         `json:"skipped"`
	Allocations AllocationCounts `json:"allocations"`
	// Drift are unhealthy allocations, at most 20: CHECK found that their networks are not as
	// they were set up.
	Drift []Drift `json:"drift"`
	// Unhealthy, Unchecked and NoCheck are the IDs of all allocations that Allocations counts so,
	// sorted. Drift has the first of the unhealthy ones.
	Unhealthy []string `json:"unhealthy,omitempty"`
	Unchecked []string `json:"unchecked,omitempty"`
	NoCheck   []string `json:"noCheck,omitempty"`
	// Waiting are host ports that lead to older allocations, at most 20.
	Waiting []Waiting `json:"waiting,omitempty"`
	// Doctor is what the quick checks of `allocnet doctor` found, nil if they were not made.
	Doctor *DoctorSummary `json:"doctor,omitempty"`
	// Repairs are the repairs since the start of the daemon.
	Repairs Repairs `json:"repairs"`
	// Errors are the last failures of operations and repairs, the newest first.
	Errors []RecentError `json:"errors"`
	// Problems are what could not be read for this overview, with the reasons.
	Problems []string `json:"problems"`
	// Unread are the parts that could not be read, or not in time: "networks", "allocations", "doctor",
	// "ready" and "versions". What the overview has of them means nothing.
	Unread   []string `json:"unread,omitempty"`
	Versions Versions `json:"versions"`
}

// Waiting is a host port of an allocation that leads to an older one, until that is torn down.
type Waiting struct {
	ID    string `json:"id"`
	Port  string `json:"port"` // as in 192.0.2.1:8080/tcp
	Older string `json:"older"`
}

// DoctorSummary is what the quick checks of `allocnet doctor` found on the host.
type DoctorSummary struct {
	Errors   int `json:"errors"`   // something does not work
	Warnings int `json:"warnings"` // something works only partly, or will stop working
	// Findings are the first ones, at most 20, errors before warnings.
	Findings []DoctorFinding `json:"findings"`
}

// DoctorFinding is one finding of `allocnet doctor`, which also says why it matters and what
// repairs it.
type DoctorFinding struct {
	ID       string `json:"id"`       // of its kind; does not change between versions
	Severity string `json:"severity"` // error or warning
	Object   string `json:"object"`
	What     string `json:"what"`
}

// DaemonStatus describes the process of the daemon.
type DaemonStatus struct {
	Version  string    `json:"version"`
	Revision string    `json:"revision,omitempty"`
	PID      int       `json:"pid"`
	Started  time.Time `json:"started"`
	// Problems are what the daemon does not serve, metrics or the page, with the reasons. It tries again.
	Problems []string `json:"problems,omitempty"`
}

// NetworkStatus describes one network.
type NetworkStatus struct {
	Name    string          `json:"name"`
	Default bool            `json:"default"`
	Engine  allocnet.Engine `json:"engine"`
	// Addresses are those that host-local leases, by family: "ipv4" and "ipv6". It is
	// empty for a network with another IPAM plugin or none.
	Addresses map[string]AddressCounts `json:"addresses,omitempty"`
	// NotReady is the reason for which a Setup in the network cannot be expected to work; "" if it can,
	// and for a network about which the daemon was not asked: see HostStatus.Ready.
	NotReady string `json:"notReady,omitempty"`
	// Pool is nil for a network without prepared network namespaces.
	Pool *PoolCounts `json:"pool,omitempty"`
}

// AddressCounts are the numbers of addresses that are leased, and that can still be leased. A subnet
// of IPv6 can have more than an integer of 64 bits holds; above 2^53 they are rounded.
type AddressCounts struct {
	Used float64 `json:"used"`
	Free float64 `json:"free"`
}

// PoolCounts are the number of prepared network namespaces and the size of the pool.
type PoolCounts struct {
	Ready int `json:"ready"`
	Size  int `json:"size"`
}

// AllocationCounts are numbers of allocations. Each one counts once, besides in Total.
type AllocationCounts struct {
	Total     int `json:"total"`
	Healthy   int `json:"healthy"`   // CHECK found no difference
	Unhealthy int `json:"unhealthy"` // see HostStatus.Drift
	// Unchecked are allocations whose CHECK could not be completed, or not in time, and which the daemon
	// does not know to be unhealthy.
	Unchecked int `json:"unchecked"`
	// NoCheck are allocations of which nothing is known to be damaged, but a network of which has no CHECK.
	NoCheck  int `json:"noCheck"`
	Adding   int `json:"adding"`
	Deleting int `json:"deleting"`
	// NetnsGone are allocations whose network namespace is gone.
	NetnsGone int `json:"netnsGone"`
	// Interrupted are allocations on which an operation did not end, and none works.
	Interrupted int `json:"interrupted"`
	// Unreadable is the number of records that cannot be read. They do not count in Total.
	Unreadable int `json:"unreadable"`
}

// Drift is an unhealthy allocation, with the findings of CHECK.
type Drift struct {
	ID    string `json:"id"`
	Error string `json:"error"`
}

// Repairs are the repairs of what other programs removed.
type Repairs struct {
	Count int `json:"count"`
	// Last is the time of the last one, and Change what led to it. Both are missing if
	// there was none.
	Last   *time.Time `json:"last,omitempty"`
	Change string     `json:"change,omitempty"`
}

// RecentError is the failure of an operation or of a repair.
type RecentError struct {
	Time      time.Time `json:"time"`
	Operation string    `json:"operation"`
	ID        string    `json:"id,omitempty"` // of the allocation
	Error     string    `json:"error"`
}

// Versions are those of the host. A program that is not installed has "".
type Versions struct {
	Kernel   string `json:"kernel"`
	NFT      string `json:"nft,omitempty"`
	IPTables string `json:"iptables,omitempty"`
}

// HostStatus returns an overview of the daemon's host. The daemon runs CHECK of all
// allocations for it, for a few seconds at most; those not checked in time are Unchecked.
func (c *Client) HostStatus(ctx context.Context) (*HostStatus, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var s HostStatus
	err := c.call(ctx, exchange{"GET", "/v1/status", nil, &s, func() error { return verifyHostStatus(&s) }})
	if err != nil {
		return nil, err
	}
	return &s, nil
}

func verifyHostStatus(s *HostStatus) error {
	if s.Daemon == nil || s.Daemon.PID == 0 || s.Engine == "" || s.Networks == nil || s.Versions.Kernel == "" {
		return errors.New("a status without the daemon, its engine, networks or kernel")
	}
	return nil
}
