package hostports

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/netlink/sockdiag"
	"github.com/allocnet/allocnet/internal/testing/fakeconmon"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/portmap"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

// TestReservations: what conmon holds for a container is a reservation of that container only.
func TestReservations(t *testing.T) {
	privhost.Require(t)
	fakeconmon.Start(t, "conmon", "web", "tcp4", "0.0.0.0:8080")
	fakeconmon.Start(t, "conmon", "web", "udp4", "0.0.0.0:8080")
	fakeconmon.Start(t, "conmon", "db", "tcp4", "0.0.0.0:8081")
	fakeconmon.Start(t, "other", "web", "tcp4", "0.0.0.0:8082")
	var mappings []portmap.Mapping
	for port := 8080; port <= 8082; port++ {
		for _, protocol := range []string{"tcp", "udp"} {
			mappings = append(mappings, portmap.Mapping{HostPort: port, Protocol: protocol})
		}
	}
	found, err := Look(mappings)
	require.NoError(t, err)
	require.Len(t, found, 4)
	for container, want := range map[string]string{
		"web": "8081 8082", "db": "8080 8082 8080", "we": "8080 8081 8082 8080", "": "8080 8081 8082 8080",
	} {
		require.ElementsMatch(t, strings.Fields(want), portsOf(Others(found, container)), container)
	}
	foreign := append([]sockdiag.Listener{}, found...)
	for i := range foreign {
		foreign[i].UID = 1000 // any user can start a program in this form
	}
	require.Len(t, Others(foreign, "web"), 4)
}

func portsOf(list []sockdiag.Listener) (ports []string) {
	for _, l := range list {
		_, port, _ := strings.Cut(l.Address.String(), ":")
		ports = append(ports, port)
	}
	return ports
}

// TestContainerOf: the first of conmon's options names the container.
func TestContainerOf(t *testing.T) {
	for args, want := range map[string]string{
		"/usr/bin/conmon --api-version 1 -c web -u web -n name": "web",
		"conmon --cid web": "web",
		"conmon --cid=web": "web",
		"conmon -c web --exit-command-arg -c --cid=db": "web",
		"conmon --version": "",
		"conmon -c":        "",
		"":                 "",
	} {
		require.Equal(t, want, containerOf(strings.Split(args, " ")), args)
	}
}
