package rtnl

import (
	"fmt"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/retry"
)

// OwnedLinks are the names of the host's links whose owner the function names.
// It reads all links.
func (h *Host) OwnedLinks(of func(names.Owner) bool) ([]string, error) {
	links, err := retry.List(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var owned []string
	for _, link := range links {
		if owner, ok := names.ParseOwner(link.Attrs().Alias); ok && of(owner) {
			owned = append(owned, link.Attrs().Name)
		}
	}
	return owned, nil
}
