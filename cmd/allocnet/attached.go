package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/state/record"
)

// errAttached: attachments need the native plugins for their DEL.
var errAttached = errors.New("other plugins leave elements of allocnet's nftables tables behind")

// layingOut are the plugins that have elements in allocnet's tables, unless a backend is
// named.
var layingOut = []string{"bridge", "firewall", "portmap", "ptp"}

// requireUnattached returns an error if attachments that runtimes made with the plugin
// binaries are on the host. The reference plugins do not know their elements: of host
// ports they would lead clients to the next holder of the address.
func requireUnattached(ctx context.Context) error {
	owners, err := attachedByRuntimes(ctx)
	if err != nil {
		return stepError{fmt.Errorf("look for attachments that need the plugins: %w", err),
			"run it as root; where no runtime has attached anything, --force does without looking"}
	}
	if len(owners) == 0 {
		return nil
	}
	return stepError{fmt.Errorf("%w, and these attachments have some: %s", errAttached, someOf(owners)),
		"take them down with their runtime first. After --force, `allocnet cleanup --force CONTAINER` removes what its DEL leaves behind"}
}

// attachedByRuntimes are the attachments that elements name as those of plugin binaries.
// The users of the default state directory have the same owners, but records as well,
// and their teardowns look for elements, whichever plugin did the DEL.
func attachedByRuntimes(ctx context.Context) ([]string, error) {
	recorded := map[string]bool{}
	records, err := record.Open(names.DefaultStateDir).List()
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		for _, a := range r.Attachments {
			recorded[names.Owner{Network: a.Network, ID: r.Container(), IfName: a.IfName}.String()] = true
		}
	}
	rules, err := ruleset.Open()
	if netfilter.IsUnsupported(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer rules.Close()
	attached := map[string]bool{}
	_, err = rules.Owned(ctx, func(o names.Owner) bool {
		if o.Instance == "" && !recorded[o.String()] {
			attached[strings.Join([]string{o.Network, o.ID, o.IfName}, "/")] = true
		}
		return false
	})
	if netfilter.IsUnsupported(err) {
		err = nil
	}
	var list []string
	for name := range attached {
		list = append(list, name)
	}
	slices.Sort(list)
	return list, err
}

// someOf lists names, of many the first.
func someOf(list []string) string {
	const most = 8
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}
