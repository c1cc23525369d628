package nomad_test

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/nomad"
	"github.com/allocnet/allocnet/sandbox"
)

// TestSetup sets up a group. Its task listens where its environment says, and is
// reached where the environment says.
func TestSetup(t *testing.T) {
	privhost.Require(t)
	outside := testhost.Outside(t)
	nets, err := configurator.New(configurator.Config{})
	require.NoError(t, err)
	defer nets.Close()

	network := nomad.Network{Mode: "bridge", DynamicPorts: []nomad.Port{{Label: "http", To: 8080, HostNetwork: "public"}}}
	ports, err := network.Allocate(nomad.Host{
		Networks: map[string]string{"public": testhost.Host4.Addr().String()},
		Choose:   func(string) (int, error) { return 20100, nil },
	})
	require.NoError(t, err)
	g := &nomad.Group{
		AllocID: "4cf0a37d-5c1c-4a2e-8f0e-3a1e0c2b9d11", Region: "global", Namespace: "default", JobID: "web", Name: "front",
		Shared: nomad.Shared{Networks: []nomad.Network{network}, Ports: ports},
	}
	a, err := g.Allocation()
	require.NoError(t, err)
	a.OwnNetns = true
	status, err := nets.Setup(t.Context(), a)
	require.NoError(t, err)
	defer func() { require.NoError(t, nets.Teardown(t.Context(), a)) }()

	record, err := nets.Get(t.Context(), g.AllocID)
	require.NoError(t, err)
	again, is := nomad.GroupOf(record)
	require.True(t, is)
	require.Equal(t, ports, again.Ports)
	require.Equal(t, g.Environment(status), again.Environment(record.Status))
	require.Equal(t, "eth0", nomad.StatusOf(record.Status).InterfaceName)

	env := map[string]string{}
	for _, variable := range g.Environment(status) {
		name, value, _ := strings.Cut(variable, "=")
		env[name] = value
	}
	greet(t, record.Netns, env["NOMAD_PORT_http"])
	require.NoError(t, greeted(env["NOMAD_ALLOC_ADDR_http"]))
	require.NoError(t, outside.Do(func() error { return greeted(env["NOMAD_ADDR_http"]) }))
}

// greet answers connections to a port in a network namespace until the test ends.
func greet(t *testing.T, netns, port string) {
	ns, err := sandbox.Open(netns)
	require.NoError(t, err)
	defer ns.Close()
	var listener net.Listener
	require.NoError(t, ns.Do(func() (err error) {
		listener, err = net.Listen("tcp", ":"+port)
		return err
	}))
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "hello")
			conn.Close()
		}
	}()
}

// greeted connects to an address and reads the greeting.
func greeted(address string) error {
	conn, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	text, err := io.ReadAll(conn)
	if err == nil && string(text) != "hello" {
		err = io.ErrUnexpectedEOF
	}
	return err
}
