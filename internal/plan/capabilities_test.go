package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
)

// TestUnservedNetworks: an error about host ports names no network that Attach has added: it may
// declare them, and gets none.
func TestUnservedNetworks(t *testing.T) {
	p := &Plan{Record: &record.Record{ID: "a", Attachments: []record.Attachment{{Network: "flat"}, {Network: "br", Attached: true}}}}
	for capability, networks := range map[string][]string{portmap.Capability: {"flat"}, Bandwidth: {"flat", "br"}} {
		var e *allocnet.UnservedError
		require.ErrorAs(t, p.UnservedError(capability), &e)
		require.Equal(t, networks, e.Networks)
	}
}
