package rtnl

import (
	"context"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/retry"
)

// MissingRoutes returns those of the wanted routes that do not exist: see RouteExists. It lists the routes of each family
// once.
func (s *Sandbox) MissingRoutes(want []*types.Route) (missing []*types.Route, err error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		some, err := s.missingRoutes(family, slices.DeleteFunc(slices.Clone(want), func(r *types.Route) bool {
			return (r.Dst.IP.To4() != nil) != (family == unix.AF_INET)
		}))
		if missing = append(missing, some...); err != nil {
			return nil, err
		}
	}
	return missing, nil
}

// missingRoutes is MissingRoutes of one family.
func (s *Sandbox) missingRoutes(family uint8, want []*types.Route) (missing []*types.Route, err error) {
	if len(want) == 0 {
		return nil, nil
	}
	err = retry.Do(context.Background(), func() error {
		missing = slices.Clone(want)
		return dump(s.conn, func(r *sock.Requests) {
			r.Begin("", unix.RTM_GETROUTE, unix.NLM_F_DUMP)
			putRoute(r, &unix.RtMsg{Family: family})
		}, func(payload []byte) error {
			missing = slices.DeleteFunc(missing, func(r *types.Route) bool { return isRoute(payload, r) })
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list the routes of the sandbox: %w", err)
	}
	return missing, nil
}
