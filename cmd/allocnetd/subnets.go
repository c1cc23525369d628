package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/allocnet/allocnet/internal/state/subnetenv"
	"github.com/allocnet/allocnet/internal/subnets"
)

// subnetsPoll is how often the files of flanneld are looked at. Setups do not wait for it: they
// look themselves.
const subnetsPoll = time.Second

// followSubnets logs when flanneld leases subnets for the host, leases others, or withdraws
// them. It runs until the context ends.
func (h *host) followSubnets(ctx context.Context) error {
	known := map[string]string{}
	for {
		h.noteSubnets(known)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(subnetsPoll):
		}
	}
}

// noteSubnets compares the subnets of flannel's networks with the known ones, by network.
func (h *host) noteSubnets(known map[string]string) {
	networks, _ := h.active().networks.Networks() // invalid files are reported elsewhere
	for _, n := range networks {
		if !slices.Contains(cmp.Or(n.Source, n).PluginTypes(), subnetenv.Type) {
			continue
		}
		var leased []string
		pools, _ := subnets.Pools(n)
		for _, p := range pools {
			leased = append(leased, p.Subnet.String())
		}
		now := strings.Join(leased, ", ")
		before, seen := known[n.Name]
		known[n.Name] = now
		switch {
		case seen && before == now:
		case now == "":
			h.logger.Warn("the network has no subnet: flanneld has written none that can be read; setups fail until it does", "network", n.Name)
		case before == "":
			h.logger.Info("the network has subnets of flanneld", "network", n.Name, "subnets", now)
		default:
			h.logger.Warn("flanneld has leased other subnets: other hosts no longer reach the allocations with addresses of the former ones; see allocnet doctor",
				"network", n.Name, "subnets", now, "before", before)
		}
	}
}
