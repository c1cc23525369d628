package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/allocnet/allocnet/configurator"
)

// preflight looks for what the demo needs. All that is missing is named at once.
func (d *demo) preflight(ctx context.Context) error {
	return errors.Join(
		d.steps.do(ctx, "plugins", d.findPlugins),
		d.steps.do(ctx, "iptables", iptables("iptables")),
		d.steps.do(ctx, "ip6tables", iptables("ip6tables")),
		d.steps.do(ctx, "host ports", d.choosePorts),
	)
}

func (d *demo) findPlugins(ctx context.Context) (string, error) {
	var err error
	if d.conf, err = configurator.New(d.Config); err != nil {
		return "", err
	}
	if err := d.conf.Ready(ctx); err != nil {
		return "", err
	}
	networks, _ := d.conf.Networks()
	for _, n := range networks {
		if n.Name == d.Config.Network {
			return strings.Join(n.Plugins, ", "), nil
		}
	}
	return "", fmt.Errorf("find network %q: it is not embedded", d.Config.Network)
}

// iptables finds out whether plugins will be able to use a program.
func iptables(program string) action {
	return func(ctx context.Context) (string, error) {
		path, err := exec.LookPath(program)
		if err != nil {
			return "", err
		}
		version, err := exec.CommandContext(ctx, path, "--version").Output()
		if err != nil {
			return "", fmt.Errorf("run %s --version: %w", program, err)
		}
		if out, err := exec.CommandContext(ctx, path, "-w", "-t", "nat", "-S").CombinedOutput(); err != nil {
			return "", fmt.Errorf("list rules with %s: %w: %s", program, err, strings.TrimSpace(string(out)))
		}
		return strings.TrimPrefix(strings.TrimSpace(string(version)), program+" "), nil
	}
}

const (
	firstHostPort = 18080
	hostPorts     = 100 // how many are tried
	serverPort    = 8080
)

// choosePorts plans the allocations, with host ports that nobody listens on.
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
