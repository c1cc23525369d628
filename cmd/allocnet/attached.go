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

// errAttached is the error while attachments need the native plugins for their DEL.
var errAttached = errors.New("other plugins leave elements of allocnet's nftables tables behind")

// requireUnattached returns an error if the host has attachments that runtimes made
// with the plugin binaries. The reference plugins would not remove the elements of
// these attachments, so a host port would lead to the next holder of the address.
func requireUnattached(ctx context.Context) error {
	owners, err := attachedByRuntimes(ctx)
	if err != nil {
		return stepError{fmt.Errorf("look for attachments that need the plugins: %w", err),
			"run it as root; if no runtime has made an attachment, use --force"}
	}
	if len(owners) == 0 {
		return nil
	}
	return stepError{fmt.Errorf("%w, and these attachments have elements: %s", errAttached, someOf(owners)),
		"remove them with their runtime first. After --force, `allocnet cleanup --force CONTAINER` removes what DEL left"}
}

// attachedByRuntimes returns the attachments whose elements name a plugin binary as owner.
// Allocations of the default state directory have the same owners. They are excluded by
// their records, because their teardown removes elements whichever plugin ran DEL.
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

// someOf joins names; if there are many, only the first ones.
func someOf(list []string) string {
	const most = 8
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}
