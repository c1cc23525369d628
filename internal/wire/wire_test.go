package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/portmap"
)

// sent is an error as a client gets it.
func sent(t *testing.T, err error) (*Error, error) {
	t.Helper()
	data, jsonErr := json.Marshal(FromError(err))
	require.NoError(t, jsonErr)
	var e Error
	require.NoError(t, json.Unmarshal(data, &e))
	return &e, e.Err()
}

func TestEveryKindArrives(t *testing.T) {
	words := map[string]bool{}
	for _, k := range Kinds {
		require.False(t, words[k.Word], "%s is there twice", k.Word)
		words[k.Word] = true
		require.NotEmpty(t, http.StatusText(k.Status), k.Word)
		if k.Sentinel == nil {
			continue
		}
		e, causes := sent(t, fmt.Errorf("outer: %w", k.Sentinel))
		require.Equal(t, k.Word, e.Kind)
		require.Equal(t, k.Status, e.Status())
		require.Equal(t, "outer: "+k.Sentinel.Error(), e.Message)
		require.ErrorIs(t, causes, k.Sentinel)
	}
}

// TestNoConfigurationIsTold, which a plugin has quoted.
func TestNoConfigurationIsTold(t *testing.T) {
	const quoted = `bad section {"password":"hunter2"}`
	e := FromError(fmt.Errorf("network: %w", &types.Error{Code: 100, Msg: quoted, Details: quoted}))
	data, err := json.Marshal(e)
	require.NoError(t, err)
	require.NotContains(t, string(data), "hunter2")
	require.Equal(t, []string{"bad section {...}", "bad section {...}"}, []string{e.CNIMessage, e.Details})
	require.Contains(t, e.Message, "network: bad section {...}")
}

func TestAllKindsOfAnErrorArrive(t *testing.T) {
	err := fmt.Errorf("%w: %w: %w", allocnet.ErrIncomplete, context.DeadlineExceeded, &types.Error{Code: 11, Msg: "later", Details: "d"})
	e, causes := sent(t, err)
	require.Equal(t, "incomplete", e.Kind)
	require.Equal(t, []string{"timeout"}, e.Also)
	require.ErrorIs(t, causes, allocnet.ErrIncomplete)
	require.ErrorIs(t, causes, context.DeadlineExceeded)
	require.NotErrorIs(t, causes, allocnet.ErrNotFound)
	var cni *types.Error
	require.ErrorAs(t, causes, &cni)
	require.Equal(t, types.Error{Code: 11, Msg: "later", Details: "d"}, *cni)
}

func TestTypedErrorsArriveWhole(t *testing.T) {
	conflict := &portmap.ConflictError{Mapping: portmap.Mapping{HostPort: 1, Protocol: "tcp"}, Other: portmap.Mapping{HostPort: 2}, ID: "a", OtherID: "b"}
	port := &portmap.PortError{Index: 1, Label: "l", Field: "to", Value: "x", Reason: "y"}
	left := &allocnet.LeftoverError{ID: "a", Leftovers: []allocnet.Leftover{{Kind: "lease", Object: "192.0.2.1"}}}
	subnet := &allocnet.SubnetError{Network: "n", File: "/conf/n", Subnet: netip.MustParsePrefix("10.0.0.0/24"), Taken: "address 10.0.0.1/24 of eth0"}
	for _, err := range []error{conflict, port, left, subnet} {
		e, causes := sent(t, fmt.Errorf("outer: %w", err))
		require.Equal(t, "outer: "+err.Error(), e.Message)
		require.EqualError(t, causes, e.Message)
		found := reflect.New(reflect.TypeOf(err))
		require.True(t, errors.As(causes, found.Interface()))
		require.Equal(t, err, found.Elem().Interface())
	}
	var network *allocnet.NetworkError
	_, causes := sent(t, &allocnet.NetworkError{File: "/conf/x", Err: errors.New("why")})
	require.ErrorAs(t, causes, &network)
	require.EqualError(t, network, "/conf/x: why")

	var corrupt *allocnet.RecordError
	e, causes := sent(t, &allocnet.RecordError{ID: "a", File: "/f", Err: fmt.Errorf("format 9: %w", allocnet.ErrNewer)})
	require.Equal(t, "newer-record", e.Kind)
	require.ErrorAs(t, causes, &corrupt)
	require.ErrorIs(t, causes, allocnet.ErrNewer)
	e, causes = sent(t, &allocnet.RecordError{ID: "a", File: "/f", Err: errors.New("why")})
	require.Equal(t, "unreadable-record", e.Kind)
	require.NotErrorIs(t, causes, allocnet.ErrNewer)
	require.ErrorAs(t, causes, &corrupt)
	require.Equal(t, []string{"a", "/f", "why"}, []string{corrupt.ID, corrupt.File, corrupt.Err.Error()})
}

func TestUnknownKind(t *testing.T) {
	require.Nil(t, FromError(nil))
	require.Equal(t, "internal", FromError(errors.New("x")).Kind)
	later := &Error{Kind: "of a later version", Message: "x"}
	require.Equal(t, http.StatusInternalServerError, later.Status())
	require.Empty(t, later.Err().(*remoteError).causes)
	require.NoError(t, (*Error)(nil).Err())
	require.Equal(t, "bad: \uFFFD", FromError(errors.New("bad: \xff")).Message)
}

// TestQuotedConfiguration: no part of an error takes along what it quotes of a
// configuration.
func TestQuotedConfiguration(t *testing.T) {
	quoting := errors.New(`invalid: {"type":"x","password":"hidden"}`)
	for _, err := range []error{
		quoting, &types.Error{Code: 7, Msg: quoting.Error(), Details: quoting.Error()},
		&allocnet.RecordError{ID: "a", File: "/f", Err: quoting}, &allocnet.NetworkError{File: "/f", Err: quoting},
		&allocnet.AllocationError{ID: "a", Err: quoting}, errors.Join(quoting, quoting),
	} {
		data, jsonErr := json.Marshal(FromError(err))
		require.NoError(t, jsonErr)
		require.NotContains(t, string(data), "hidden", "%T", err)
	}
}

// TestNoAttachments: a runtime without attachments says so, which nobody else does.
func TestNoAttachments(t *testing.T) {
	for _, attachments := range [][]types.GCAttachment{nil, {}} {
		data, err := json.Marshal(Collect{Attachments: attachments})
		require.NoError(t, err)
		var asked Collect
		require.NoError(t, json.Unmarshal(data, &asked))
		require.Equal(t, attachments, asked.Attachments)
	}
}
