package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"

	"github.com/allocnet/allocnet/portmap"
)

// The measures of plugins that run as processes, and the names of their
// implementations.
const (
	processTitle   = "bridge ADD, one process"
	processesTitle = "chain ADD, processes"
	referenceName  = "reference plugins"
	allocnetName   = "allocnet-plugins"
)

// pluginProgram is the directory of the multi-call program, relative to the
// module.
const pluginProgram = "cmd/allocnet-plugins"

// pluginTypes are the plugins in a chain of this benchmark.
var pluginTypes = []string{"loopback", "bridge", "ptp", "host-local", "firewall", "portmap"}

// dropin compares allocnet's plugin binaries, also those whose work the daemon does,
// with the reference plugins.
func (b *bench) dropin(ctx context.Context) (err error) {
	b.progress("plugins as processes")
	slots, err := b.slots(ctx, 1)
	if err != nil {
		return err
	}
	dirs, stop, err := b.dropinDirs(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	var names []string
	measured := map[string]*dropinSamples{}
	var turns []turn
	for _, name := range []string{daemonName, allocnetName, referenceName} {
		if dirs[name] == "" {
			continue
		}
		d, err := newDropin(b.newNetwork("dropin-"+name[:5], "bridge", false), dirs[name], slots[0])
		if err != nil {
			return err
		}
		// The first call creates the bridge.
		if err := d.live(ctx, &dropinSamples{}); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		m := &dropinSamples{}
		measured[name] = m
		names = append(names, name)
		turns = append(turns, turn{1, func(int) error {
			if err := d.live(ctx, m); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		}})
	}
	if err := takeTurns(ctx, b.size.dropin, turns); err != nil {
		return err
	}
	for _, name := range names {
		b.report.add(processTitle, name, seconds, measured[name].process)
	}
	for _, name := range names {
		b.report.add(processesTitle, name, seconds, measured[name].chain)
	}
	return nil
}

// dropinDirs returns the plugin directories by implementation. stop ends the daemon.
func (b *bench) dropinDirs(ctx context.Context) (dirs map[string]string, stop func() error, err error) {
	dirs = map[string]string{referenceName: b.plugins}
	dirs[allocnetName], err = b.buildPlugins(ctx)
	if errors.Is(err, errNoPlugins) {
		b.progress("  without %s: %v", allocnetName, err)
		return dirs, func() error { return nil }, nil
	}
	if err != nil {
		return nil, nil, err
	}
	programs, err := b.buildDaemon(ctx)
	if err != nil {
		return nil, nil, err
	}
	// The program that works without the daemon is not there, so that only the daemon
	// is measured.
	dirs[daemonName] = filepath.Join(workDir, "plugins-daemon")
	if err := linkPlugins(dirs[daemonName], filepath.Join(programs, filepath.Base(pluginProgram)+"-shim")); err != nil {
		return nil, nil, err
	}
	settings := filepath.Join(workDir, "dropin.hcl")
	text := "networks = [\"allocnet\"]\nlog {\n  level = \"warn\"\n}\n" // the embedded network
	if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
		return nil, nil, err
	}
	daemon, err := runDaemon(ctx, programs, settings)
	if err != nil {
		return nil, nil, err
	}
	return dirs, daemon.stop, nil
}

// linkPlugins creates a directory with a link to a program for each plugin.
func linkPlugins(dir, program string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range pluginTypes {
		if err := os.Symlink(program, filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// errNoPlugins: the module does not contain the plugin program, or the program
// lacks a plugin.
var errNoPlugins = errors.New("this build lacks a plugin")

// buildPlugins builds the multi-call program and a link to it for each plugin,
// and checks that each responds. The error may be errNoPlugins.
func (b *bench) buildPlugins(ctx context.Context) (string, error) {
	if _, err := os.Stat(filepath.Join(b.module, pluginProgram)); err != nil {
		return "", fmt.Errorf("%w: %w", errNoPlugins, err)
	}
	dir := filepath.Join(workDir, "plugins")
	program := filepath.Join(dir, filepath.Base(pluginProgram))
	c := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildmode=pie", "-o", program, "./"+pluginProgram)
	c.Dir, c.Env = b.module, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", pluginProgram, err, out)
	}
	if err := linkPlugins(dir, program); err != nil {
		return "", err
	}
	for _, name := range pluginTypes {
		c := exec.CommandContext(ctx, filepath.Join(dir, name))
		c.Env, c.Stdin = append(os.Environ(), "CNI_COMMAND=VERSION"), bytes.NewReader([]byte(`{"cniVersion":"1.0.0"}`))
		if err := c.Run(); err != nil {
			return "", fmt.Errorf("%w: the program does not answer as %s: %w", errNoPlugins, name, err)
		}
	}
	return dir, nil
}

// dropinUser runs the plugins of one directory as a runtime does.
type dropinUser struct {
	dir    string
	slot   *slot
	list   *libcni.NetworkConfigList
	bridge []byte // configuration of the bridge plugin alone
	cni    *libcni.CNIConfig
	args   *libcni.RuntimeConf
}

type dropinSamples struct{ process, chain samples }

func newDropin(n *network, dir string, s *slot) (*dropinUser, error) {
	text, err := n.conflist()
	if err != nil {
		return nil, err
	}
	d := &dropinUser{dir: dir, slot: s, cni: libcni.NewCNIConfigWithCacheDir([]string{dir}, workDir+"/cache", nil)}
	if d.list, err = libcni.NetworkConfFromBytes(text); err != nil {
		return nil, err
	}
	alone := n.main()
	alone["cniVersion"], alone["name"] = "1.0.0", n.name
	if d.bridge, err = json.Marshal(alone); err != nil {
		return nil, err
	}
	mappings, err := portmap.Mappings(s.ports(), portmap.Options{})
	d.args = &libcni.RuntimeConf{
		ContainerID: s.id, NetNS: s.netns, IfName: "eth0", CapabilityArgs: map[string]any{"portMappings": mappings},
	}
	return d, err
}

// live measures the bridge plugin alone and then the whole chain.
func (d *dropinUser) live(ctx context.Context, m *dropinSamples) error {
	if err := timed(&m.process, func() error { return d.process(ctx, "ADD") }); err != nil {
		return err
	}
	if err := d.process(ctx, "DEL"); err != nil {
		return err
	}
	if err := timed(&m.chain, func() error { return d.add(ctx, d.slot.id) }); err != nil {
		return err
	}
	return d.del(ctx, d.slot.id)
}

func (d *dropinUser) add(ctx context.Context, id string) error {
	_, err := d.cni.AddNetworkList(ctx, d.list, d.argsOf(id))
	return err
}

func (d *dropinUser) del(ctx context.Context, id string) error {
	return d.cni.DelNetworkList(ctx, d.list, d.argsOf(id))
}

func (d *dropinUser) argsOf(id string) *libcni.RuntimeConf {
	args := *d.args
	args.ContainerID = id
	return &args
}

// process runs the bridge plugin as the specification defines.
func (d *dropinUser) process(ctx context.Context, command string) error {
	c := exec.CommandContext(ctx, filepath.Join(d.dir, "bridge"))
	c.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+d.slot.id,
		"CNI_NETNS="+d.slot.netns, "CNI_IFNAME=eth0", "CNI_PATH="+d.dir)
	c.Stdin = bytes.NewReader(d.bridge)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("run bridge %s: %w: %s", command, err, out)
	}
	return nil
}
