package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
)

// TestPublishHelp: a port without a protocol opens two.
func TestPublishHelp(t *testing.T) {
	require.Contains(t, runWith("", "publish", "--help").ok(t), "A port without a protocol is published for tcp and udp.")
	require.Contains(t, runWith("", "setup", "--help").ok(t), "without a protocol tcp and udp")
}

// TestPublish changes the host ports of an allocation that is set up, and says why if it cannot.
func TestPublish(t *testing.T) {
	w := newWorkspace(t)
	w.sandbox("web")
	status := decode[configurator.Status](t, w.run("setup", "web", "--network", "allocnet", "--port", "8080:80/tcp", "--json").ok(t))
	require.NotEmpty(t, status.Revision)

	text := w.run("publish", "web", "8081:81/tcp", "--unpublish", "8080/tcp", "--revision", status.Revision).ok(t)
	require.Regexp(t, `web is changed\n\nHOST PORT +PORT +PROTOCOL +LABEL\n8081 +81 +tcp`, text)
	require.NotContains(t, text, "8080")
	for _, same := range [][]string{{"publish", "web", "8081:81/tcp"}, {"unpublish", "web", "9999"}} {
		require.Regexp(t, `web is as it was before\n\nHOST PORT .*\n8081 `, w.run(same...).ok(t))
	}
	require.Equal(t, "revision", w.run("unpublish", "web", "8081", "--revision", status.Revision, "--json").failure(t, exitFailure).Kind)
	changed := decode[configurator.Status](t, w.run("unpublish", "web", "8081", "--json").ok(t))
	require.Empty(t, changed.Ports)
	require.Equal(t, changed.Revision, decode[configurator.Record](t, w.run("inspect", "web", "--json").ok(t)).Revision)

	wrong := w.run("publish", "web", "x", "--json").failure(t, exitUsage)
	require.Contains(t, wrong.Error, `port "x"`)
	require.Contains(t, wrong.Hint, "usage: allocnet publish ID PORT...")
	require.Equal(t, "not-found", w.run("publish", "absent", "8081", "--json").failure(t, exitNo).Kind)
	w.run("teardown", "web").ok(t)

	// A port on an address that the host does not have is published, with one warning.
	absent := "warning: host ports on 203.0.113.9: no interface of the host has this address; they do not answer until one has it\n"
	for _, args := range [][]string{
		{"setup", "web", "--network", "allocnet", "--port", "203.0.113.9:8080:80"}, {"publish", "web", "203.0.113.9:8081:80"},
	} {
		got := w.run(args...)
		require.Regexp(t, `203.0.113.9:808. +80 +tcp.*\n(.*\n)*\n`+absent+"$", got.ok(t))
		require.Empty(t, got.errOut)
	}
	w.run("teardown", "web").ok(t)

	first := decode[configurator.Status](t, w.run("setup", "web", "--network", "allocnet", "--port", "http=0:80/tcp", "--json").ok(t))
	number := first.Ports[0].HostPort
	require.Greater(t, number, 19999)
	text = w.run("setup", "web", "--network", "allocnet", "--port", "http=0:80/tcp").ok(t)
	require.Regexp(t, fmt.Sprintf(`web is set up already\n(.*\n)*%d +80 +tcp +http`, number), text)
	status = decode[configurator.Status](t, w.run("publish", "web", "0:81/tcp", "--json").ok(t))
	require.Len(t, status.Ports, 2)
	require.Equal(t, 81, status.Ports[1].ContainerPort)
	require.Equal(t, "invalid", w.run("unpublish", "web", "0", "--json").failure(t, exitUsage).Kind)
	w.run("teardown", "web").ok(t)

	w.run("setup", "web").ok(t)
	refused := w.run("publish", "web", "8081:81/tcp", "--json").failure(t, exitFailure)
	require.Equal(t, "cannot-update", refused.Kind)
	w.run("teardown", "web").ok(t)
}
