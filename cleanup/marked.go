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

// Marked are the IDs of the allocations that comments of rules name in a network, sorted: rules that its plugins make
// where its conflist names a backend. Host ports of the backend nftables name no network, and count where the
// allocation holds a lease in this one. Comments that are cut off are left out, and so are allocations that a link
// names as those of another state directory's users, because rules do not tell these apart.
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

// namedBackends is the scope of what a conflist names a backend for.
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
		case p.Type == "firewall": // its rules name addresses only
		case backend == "iptables":
			s.nat = true
		case backend == "nftables":
			s.nftables = true
		}
	}
	return s
}

// markedInNat reads the comments of both families' nat tables, also those of the kind of iptables that the command is
// not.
func markedInNat(ctx context.Context, network string, ids map[string]bool) error {
	f := newSearch(Target{}).iptables // of any allocation
	note := func(comment string) {
		if id := commentID(comment, network); id != "" {
			ids[id] = true
		}
	}
	var errs []error
	for _, fam := range []family{ipv4, ipv6} {
		ipt, err := f.open(fam)
		if err == nil {
			listing, listErr := list(ipt, "nat")
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
			err = f.absentInNat(ctx, f.kernel(fam, "nat"), err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// commentID is the ID that a comment names in a network, "" if none.
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

// markedInNFTables reads the comments of masquerading, and those of host ports that are of this network by a lease.
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

// masqHashID is the ID that a masquerade rule's comment names in a network, "" if none. The hashes have to confirm
// what the text says.
func masqHashID(comment, network string) string {
	hash, text, _ := strings.Cut(comment, ",")
	_, text, _ = strings.Cut(text, ", if: ")
	ifName, id, found := strings.Cut(text, ", id: ")
	if !found || hash != masqHash(network, ifName, id) {
		return ""
	}
	return id
}

// dropOthers takes out the IDs that links name as those of another instance.
func dropOthers(network, instance string, ids map[string]bool) error {
	_, err := rtnl.OwnedLinks(func(o names.Owner) bool {
		if o.OfNetwork(network) && o.Instance != instance {
			maps.DeleteFunc(ids, func(id string, _ bool) bool { return o.OfID(id) })
		}
		return false
	})
	return err
}
