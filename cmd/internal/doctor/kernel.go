package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/features"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/sandbox"
)

func checkPrivileges(context.Context, *Host) ([]Finding, error) {
	missing, err := rtnl.MissingPrivileges()
	if err != nil {
		return nil, err
	}
	if len(missing) > 0 {
		return []Finding{find("privileges", strings.Join(missing, ", "), "this process lacks "+strings.Join(missing, " and "), "sudo allocnet doctor")}, nil
	}
	owns, err := rtnl.OwnsHost()
	if err == nil && !owns {
		return []Finding{find("privileges", "user namespace", "the capabilities of this process do not apply to its network namespace", "run allocnet outside of the user namespace, as root")}, nil
	}
	return nil, err
}

// checkKernel tries what the plugins of the networks need, and allocnet's tables, each in a network namespace
// of its own that ends with the check.
func checkKernel(ctx context.Context, h *Host) (findings []Finding, err error) {
	if missing, err := rtnl.MissingPrivileges(); err != nil || len(missing) > 0 {
		return nil, err // checkPrivileges reports it
	}
	s, err := sandbox.New()
	if errors.Is(err, unix.ENOSPC) { // checkLimits reports it
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("create a network namespace for tests: %w", err)
	}
	defer s.Close()
	missing, err := features.Find(ctx, h.Networks)
	for _, m := range missing {
		findings = append(findings, find("kernel-feature", m.Name, m.Reason(), m.Remedy()))
	}
	return findings, errors.Join(err, s.Do(func() error {
		if err := tryRuleset(ctx); err != nil {
			findings = append(findings, find("nftables", "nf_tables", "the kernel refuses allocnet's tables: "+err.Error(),
				"modprobe --all nf_tables nft_chain_nat nft_fib_inet, or use a kernel with CONFIG_NF_TABLES, CONFIG_NFT_NAT and CONFIG_NFT_FIB_INET"))
		}
		return nil
	}))
}

// tryRuleset makes allocnet's tables in the network namespace of the thread.
func tryRuleset(ctx context.Context) error {
	r, err := ruleset.Open()
	if err != nil {
		return err
	}
	err = r.Add(ctx, &ruleset.Elements{
		Owner: names.Owner{Network: "doctor", ID: "doctor", IfName: "eth0"},
		Open:  []netip.Addr{netip.MustParseAddr("192.0.2.1")},
	})
	if err != nil && netfilter.IsUnsupported(err) {
		err = fmt.Errorf("%w (no support in the kernel)", err)
	}
	return errors.Join(err, r.Close())
}
