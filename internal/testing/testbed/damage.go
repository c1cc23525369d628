package testbed

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
)

// SlotLinks returns the names of the links on the host of slots that wait: of those whose
// record is not that of an allocation.
func SlotLinks(t testing.TB) (links []string) {
	t.Helper()
	records, err := filepath.Glob(configurator.DefaultStateDir + "/allocs/pool-*.json")
	require.NoError(t, err)
	for _, file := range records {
		id := strings.TrimSuffix(filepath.Base(file), ".json")
		for _, network := range []string{"net", "net0"} {
			link, err := netlink.LinkByName(names.Owner{Network: network, ID: id, IfName: "eth0"}.Veth())
			if err == nil {
				links = append(links, link.Attrs().Name)
			}
		}
	}
	return links
}

// DamageSlots runs a command line of sh. If it contains VETH, it runs once for each
// link of SlotLinks, with the name in that place. It may fail for a link that is gone: a daemon
// may have discarded the slot already, because of the first part of the command.
func DamageSlots(t testing.TB, line string) {
	t.Helper()
	if !strings.Contains(line, "VETH") {
		Shell(t, line)
		return
	}
	links := SlotLinks(t)
	require.NotEmpty(t, links)
	for _, link := range links {
		err := Command("sh", "-c", strings.ReplaceAll(line, "VETH", link))
		if _, lost := netlink.LinkByName(link); lost == nil {
			require.NoError(t, err)
		}
	}
}
