package cleanup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/state/statedir"
)

// Marked returns the sorted IDs of the allocations that comments of rules name in a
// network: rules of plugins whose configuration selects a backend. Comments of host
// ports in the nftables backend do not name the network; they count if the allocation
// has a lease in this one. Marked omits truncated comments. Rules do not name a state
// directory, so it also omits allocations that have a link of another state directory.
func Marked(ctx context.Context, network string, config []byte, stateDir string) ([]string, error) {
	state, err := statedir.Resolve(stateDir)
	if err != nil {
		return nil, err
	}
	named := namedBackends(config)
	ids := map[string]bool{}
	var errs []error
	if named.nat {
		errs = append(errs, markedInNat(ctx, network, ids))
	}
	if named.nftables {
		errs = append(errs, markedInNFTables(ctx, network, config, ids))
	}
	if len(ids) > 0 {
		errs = append(errs, dropOthers(network, state.Instance, ids))
	}
	return slices.Sorted(maps.Keys(ids)), errors.Join(errs...)
}

// namedBackends returns the scope of the plugins whose configuration selects a backend.
func namedBackends(config []byte) (s scope) {
	var conf struct {
		Plugins []pluginConf `json:"plugins"`
	}
	if json.Unmarshal(config, &conf) != nil {
		return s
	}
	for _, p := range conf.Plugins {
		backend := p.Backend
		if p.Type == "bridge" || p.Type == "ptp" {
			backend = p.IPMasqBackend
		}
		switch {
		case p.Type == "firewall": // its rules contain only addresses
		case backend == "iptables":
			s.nat = true
		case backend == "nftables":
			s.nftables = true
		}
	}
	return s
}

// markedInNat reads the comments in the nat tables of both families, also in those of
// the iptables variant (legacy or nft) that the command does not show.
func markedInNat(ctx context.Context, network string, ids map[string]bool) error {
	f := newSearch(Target{}).iptables // for any allocation
	note := func(comment string) {
		if id := commentID(comment, network); id != "" {
			ids[id] = true
		}
	}
	var errs []error
	for _, fam := range []family{ipv4, ipv6} {
		ipt, err := f.open(fam)
		if err == nil {
			listing, listErr := list(ctx, ipt, "nat")
			err = listErr
			for _, rule := range listing.Rules {
				note(rule.Value("--comment"))
			}
		}
		if err == nil {
			hidden, hiddenErr := f.kernel(fam, "nat").HiddenComments(ctx)
			errs = append(errs, hiddenErr)
			for _, comment := range hidden {
				note(comment)
			}
		}
		if err != nil && ctx.Err() == nil {
			err = f.requireAbsentInNat(ctx, f.kernel(fam, "nat"), err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// commentID returns the ID that a comment names in a network, or "".
func commentID(comment, network string) string {
	for _, prefix := range []string{
		fmt.Sprintf("name: %q id: ", network), fmt.Sprintf(`dnat name: "%s" id: `, network), fmt.Sprintf(`snat name: "%s" id: `, network),
	} {
		if quoted, found := strings.CutPrefix(comment, prefix); found {
			id, _ := strconv.Unquote(quoted)
			return id
		}
	}
	return ""
}

// markedInNFTables reads the comments of masquerade rules, and those of host ports
// whose allocation has a lease in this network.
func markedInNFTables(ctx context.Context, network string, config []byte, ids map[string]bool) error {
	rules, err := listNFTables(ctx)
	if err != nil {
		return err
	}
	holders, err := Holders(network, config)
	for _, rule := range rules {
		if rule.where == masqChecks {
			if id := masqHashID(rule.comment, network); id != "" {
				ids[id] = true
			}
		} else if slices.Contains(holders, rule.comment) {
			ids[rule.comment] = true
		}
	}
	return err
}

// masqHashID returns the ID that the comment of a masquerade rule names in a network,
// or "". It verifies the text with the hash.
func masqHashID(comment, network string) string {
	hash, text, _ := strings.Cut(comment, ",")
	_, text, _ = strings.Cut(text, ", if: ")
	ifName, id, found := strings.Cut(text, ", id: ")
	if !found || hash != masqHash(network, ifName, id) {
		return ""
	}
	return id
}

// dropOthers removes the IDs of allocations with a link of another instance.
func dropOthers(network, instance string, ids map[string]bool) error {
	_, err := rtnl.OwnedLinks(func(o names.Owner) bool {
		if o.OfNetwork(network) && o.Instance != instance {
			maps.DeleteFunc(ids, func(id string, _ bool) bool { return o.OfID(id) })
		}
		return false
	})
	return err
}
