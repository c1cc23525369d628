package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/configurator"
)

// TestCompletionAfterID: after the ID, commands complete values that the allocation has or lacks,
// not the ID of another allocation.
func TestCompletionAfterID(t *testing.T) {
	w := newWorkspace(t)
	complete := func(args ...string) string {
		return runWith("", append(append([]string{"__complete"}, w.flags()...), args...)...).ok(t)
	}
	require.Equal(t, ":4\n", complete("attach", "web", ""))
	require.NoDirExists(t, w.path("state"), "completion leaves no trace")
	require.NoError(t, os.WriteFile(w.path("conf/40-storage.conflist"), []byte(`{"cniVersion":"1.0.0","name":"storage","plugins":[
		{"type":"ptp","ipam":{"type":"host-local","dataDir":"`+w.path("leases")+`","subnet":"10.95.0.0/24"}}]}`), 0o600))
	for _, id := range []string{"web", longID + ".eth0"} {
		w.sandbox(id[:3])
		w.run("setup", id, "--netns", "/run/netns/"+id[:3], "--network", "allocnet").ok(t)
	}
	w.run("publish", "web", "http=8080:80/tcp", "127.0.0.1:9000-9001:90-91", "[::1]:53:53/udp").ok(t)
	w.run("attach", "web", "storage").ok(t)

	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"attach", "web", ""}, "front\tfake\nback\tfake\n:4\n"},
		{[]string{"attach", "web", "b"}, "back\tfake\n:4\n"},
		{[]string{"attach", longID[:12], "s"}, "storage\tptp\n:4\n"},
		{[]string{"attach", "web", "back", ""}, ":4\n"},
		{[]string{"attach", "absent", ""}, ":4\n"},
		{[]string{"detach", "web", ""}, "eth1\tstorage\n:4\n"},
		{[]string{"detach", longID + ".eth0", ""}, ":4\n"},
		{[]string{"unpublish", "web", ""}, "8080/tcp\tto port 80, http\n127.0.0.1:9000-9001/tcp+udp\tto port 90-91\n[::1]:53/udp\tto port 53\n:4\n"},
		{[]string{"unpublish", "web", "8080/tcp", "[::1]:53/udp", "1"}, "127.0.0.1:9000-9001/tcp+udp\tto port 90-91\n:4\n"},
		{[]string{"publish", "web", "81:81", "--unpublish", "8"}, "8080/tcp\tto port 80, http\n:4\n"},
		{[]string{"publish", "web", ""}, ":4\n"},
		{[]string{"policy", "explain", "web", "--to", longID + ".eth0", ""}, ":4\n"},
		{[]string{"ls", "--filter", ""}, "network=\nstate=\nlabel=\n:6\n"},
		{[]string{"ls", "--filter", "s"}, "state=\n:6\n"},
		{[]string{"ls", "--filter", "state="}, "state=adding\nstate=ready\nstate=deleting\nstate=gone\n:4\n"},
		{[]string{"ls", "--filter=state=r"}, "state=ready\n:4\n"},
		{[]string{"ls", "--filter", "network=b"}, "network=back\tfake\n:4\n"},
	} {
		require.Equal(t, c.want, complete(c.args...), c.args)
	}
	for _, command := range []string{"attach", "detach", "publish", "unpublish"} {
		require.Regexp(t, `^web\tready, .*\n:4\n$`, complete(command, "w"))
	}
	require.Regexp(t, `^web\tready, .*\n:4\n$`, complete("policy", "explain", "w"))
	w.run("unpublish", "web", "8080/tcp", "127.0.0.1:9000-9001/tcp+udp", "[::1]:53/udp").ok(t)
	require.Equal(t, ":4\n", complete("unpublish", "web", ""), "the completed ports are those that unpublish takes")
	w.run("gc", "--none").ok(t)
}

// TestAddedInterfaces: detach removes neither the loopback nor the interface of the first network.
func TestAddedInterfaces(t *testing.T) {
	for want, interfaces := range map[string][]string{"": nil, "eth1 net|eth2 net": {"lo", "eth0", "eth1", "eth2"}, "b net": {"a", "lo", "b"}} {
		var r configurator.Record
		for _, name := range interfaces {
			r.Networks = append(r.Networks, allocnet.NetworkRecord{Network: "net", Interface: name})
		}
		require.Equal(t, want, strings.ReplaceAll(strings.Join(addedInterfaces(&r), "|"), "\t", " "))
	}
}
