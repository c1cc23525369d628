package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/engine/cniexec"
	"github.com/allocnet/allocnet/internal/engine/native"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/subnets"
)

// preflight checks the requirements of the demo, and reports everything that is
// missing at once.
func (d *demo) preflight(ctx context.Context) error {
	return errors.Join(
		d.steps.do(ctx, "plugins", d.findPlugins),
		d.steps.do(ctx, "iptables", d.iptables("iptables")),
		d.steps.do(ctx, "ip6tables", d.iptables("ip6tables")),
		d.steps.do(ctx, "host ports", d.choosePorts),
	)
}

// findPlugins creates the configurator, which reports missing plugins.
func (d *demo) findPlugins(ctx context.Context) (string, error) {
	d.Config.Journal = 0  // the demo leaves nothing behind
	d.Config.Policy = nil // that of this host may deny what the demo shows
	options := conflist.EmbeddedOptions{
		StateDir: d.Config.StateDir, Subnets: d.Config.Subnets, SubnetsFrom: d.Config.SubnetsFrom, Routes: conflist.EmbeddedRoutes(d.Config.Routes), ForBinaries: d.Config.Engine == configurator.EngineExec,
	}
	chosen, err := subnets.Choice(options) // those of the host, without a file that keeps them
	if err != nil {
		return "", err
	}
	if chosen != nil {
		d.Config.Subnets, options.Subnets = chosen, chosen
	}
	if d.conf, err = configurator.New(d.Config); err != nil {
		return "", err
	}
	network, err := conflist.Embedded(options)
	if err != nil {
		return "", err
	}
	all := cniexec.Engine{}.Binaries(network)
	binaries := all
	if d.Config.Engine != configurator.EngineExec {
		binaries = native.New(hclog.NewNullLogger(), "").Binaries(network)
	}
	d.needsIPTables = len(binaries) > 0
	return whoRuns(all, binaries), d.conf.Ready(ctx)
}

// whoRuns describes which plugins run in this process and which as binaries.
func whoRuns(all, binaries []string) string {
	var inside, parts []string
	for _, plugin := range all {
		if !slices.Contains(binaries, plugin) {
			inside = append(inside, plugin)
		}
	}
	if len(inside) > 0 {
		parts = append(parts, "in this process: "+strings.Join(inside, ", "))
	}
	if len(binaries) > 0 {
		parts = append(parts, "as binaries: "+strings.Join(binaries, ", "))
	}
	return strings.Join(parts, "; ")
}

// iptables checks whether the program iptables or ip6tables works, if it is
// needed. Plugin binaries require it. Otherwise it is needed only where it is
// installed, to accept packets that its own rules would drop.
func (d *demo) iptables(program string) action {
	return func(ctx context.Context) (string, error) {
		table := "filter"
		if d.needsIPTables {
			table = "nat"
		}
		path, err := exec.LookPath(program)
		if errors.Is(err, exec.ErrNotFound) && !d.needsIPTables {
			return "not installed, and not needed", nil
		}
		if err != nil {
			return "", err
		}
		version, err := exec.CommandContext(ctx, path, "--version").Output()
		if err != nil {
			return "", fmt.Errorf("run %s --version: %w", program, err)
		}
		if out, err := exec.CommandContext(ctx, path, "-w", "-t", table, "-S").CombinedOutput(); err != nil {
			return "", fmt.Errorf("list rules with %s: %w: %s", program, err, strings.TrimSpace(string(out)))
		}
		return strings.TrimPrefix(strings.TrimSpace(string(version)), program+" "), nil
	}
}

const (
	firstHostPort = 18080
	hostPorts     = 100 // number of ports to try
	serverPort    = 8080
)

// choosePorts plans the allocations, with host ports that no process listens
// on.
func (d *demo) choosePorts(ctx context.Context) (string, error) {
	var free []string
	for port := firstHostPort; port < firstHostPort+hostPorts && len(d.allocs) < 2; port++ {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", ":"+strconv.Itoa(port))
		if errors.Is(err, os.ErrPermission) {
			return "", err
		}
		if err != nil {
			continue
		}
		l.Close()
		id := fmt.Sprintf("allocnet-demo-%c", 'a'+len(d.allocs))
		d.allocs = append(d.allocs, &allocation{id: id, hostPort: port})
		free = append(free, strconv.Itoa(port))
	}
	if len(d.allocs) < 2 {
		return "", fmt.Errorf("find two free ports from %d on: tried %d", firstHostPort, hostPorts)
	}
	return strings.Join(free, " and ") + " are free", nil
}
