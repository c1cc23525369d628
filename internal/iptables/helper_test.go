package iptables

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

var both = []Family{IPv4, IPv6}

// variants are the names of the two implementations of iptables.
var variants = map[string][2]string{
	"nf_tables": {"iptables-nft", "ip6tables-nft"},
	"legacy":    {"iptables-legacy", "ip6tables-legacy"},
}

// host is a private host whose filter table is empty.
type host struct {
	tb       testing.TB
	programs [2]string
}

func newHost(tb testing.TB, variant string) *host {
	h := &host{tb: tb, programs: variants[variant]}
	privhost.Require(tb, h.programs[:]...)
	tb.Cleanup(h.clear)
	return h
}

func (h *host) clear() {
	for _, program := range h.programs {
		h.run(program, "-P", "FORWARD", "ACCEPT")
		h.run(program, "-F")
		h.run(program, "-X")
		if strings.HasSuffix(program, "legacy") {
			h.run(program, "-t", "mangle", "-F")
		}
	}
}

func (h *host) acceptRule() *AcceptRule {
	o := newAcceptRule(h.programs[0], h.programs[1])
	h.tb.Cleanup(func() { require.NoError(h.tb, o.Close()) })
	return o
}

func (h *host) run(program string, args ...string) string {
	h.tb.Helper()
	command := exec.Command(program, args...)
	var stderr strings.Builder
	command.Stderr = &stderr
	output, err := command.Output()
	require.NoError(h.tb, err, "%s: %s", command, &stderr)
	return string(output)
}

// each runs a command of both programs.
func (h *host) each(command string) {
	h.tb.Helper()
	for _, program := range h.programs {
		h.run(program, strings.Fields(command)...)
	}
}

// rules requires the same listing of both families.
func (h *host) rules(want string) {
	h.tb.Helper()
	for _, program := range h.programs {
		require.Equal(h.tb, strings.TrimSpace(want), strings.TrimSpace(h.run(program, "-S")), program)
	}
}

func (h *host) ensure(o *AcceptRule, admins ...string) {
	h.tb.Helper()
	require.NoError(h.tb, o.Ensure(context.Background(), both, admins...))
}

// eachVariant runs a test with both implementations.
func eachVariant(t *testing.T, test func(h *host)) {
	for name := range variants {
		t.Run(name, func(t *testing.T) { test(newHost(t, name)) })
	}
}
