package engine

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/conflist"
)

// TestKnownFindings: the CHECK of a plugin has an error if one of its findings is new.
func TestKnownFindings(t *testing.T) {
	n, err := conflist.Parse([]byte(`{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"one"},{"type":"two"}]}`))
	require.NoError(t, err)
	mac, route := errors.New("another MAC in /run/netns/a"), errors.New("no route")
	both := fmt.Errorf("plugin: %w", errors.Join(mac, errors.Join(nil, route)))
	request := func(known map[int][]string) *Request {
		return &Request{Netns: "/run/netns/a", Attachments: []Attachment{{Network: n, Known: known}}}
	}
	at := Place{Plugin: 1}
	require.NoError(t, request(nil).Checked(at, true, nil))
	var found *CheckError
	require.ErrorAs(t, request(nil).Checked(at, true, both), &found)
	require.Equal(t, []string{"another MAC in CNI_NETNS", "no route"}, found.Findings)
	require.Equal(t, "two", found.Type)
	require.EqualError(t, found, both.Error())
	require.ErrorIs(t, found, route)
	known := request(map[int][]string{1: found.Findings})
	require.NoError(t, known.Checked(at, true, both))
	require.NoError(t, known.Checked(at, true, route), "one of them may have ended")
	require.ErrorIs(t, known.Checked(at, true, fmt.Errorf("plugin: %w", errors.Join(route, errors.New("no link")))), route, "all are reported with a new one")
	require.Error(t, known.Checked(Place{}, true, both), "of another plugin")
}
