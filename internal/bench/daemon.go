package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/allocnet/allocnet/portmap"
)

// The measures of the daemon's plugin, and the names of what they are compared
// with.
const (
	throughTitle = "ADD, allocnet-cni, one process"
	beyondTitle  = "... without the library's own time"
	removedTitle = "DEL until it returns, allocnet-cni, one process"
	crowdTitle   = "ADD, allocnet-cni, 20 at a time"
	emptyTitle   = "start of an empty Go program"
	daemonName   = "allocnetd"
	goTitle      = "Go-only"
	noDaemonName = "no-daemon"
	emptyName    = "go"
)

// The programs that a runtime can run as the plugin.
const (
	shimName = "allocnet-cni-shim"
	goName   = "allocnet-cni"
)

// throughAtOnce is the number of runtimes that run the plugin at the same time.
const throughAtOnce = 20

// commandName is the command line.
const commandName = "allocnet"

// daemonPrograms must be in the same directory.
var daemonPrograms = []string{"allocnetd", goName, commandName}

// daemon measures ADDs through the CNI plugin of allocnetd, as a runtime runs
// it, with and without the daemon. In the same rounds it measures the library's
// own ADD of the same network, and a program that does nothing.
func (b *bench) daemon(ctx context.Context) (err error) {
	b.progress("the daemon's plugin")
	slots, err := b.slots(ctx, max(1, b.size.batch))
	if err != nil {
		return err
	}
	library, err := b.open(ctx, nativeName, "bridge", false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, library.close(ctx)) }()
	through, stop, err := b.startDaemon(ctx, slots[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	dir := through.dir
	program := *through
	program.program, program.adds, program.dels = goName, nil, nil
	fallback, err := newPluginUser(b.newNetwork("fallback", "bridge", false), dir, shimName, slots[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeBridge(fallback.bridge)) }()
	if err := b.daemonTurns(ctx, filepath.Join(dir, emptyName), library, &pluginUsers{through, &program, fallback}); err != nil {
		return err
	}
	var rates samples
	for range b.size.bursts {
		one, err := through.crowd(ctx, slots)
		if err != nil {
			return err
		}
		rates = append(rates, one...)
	}
	b.report.add(crowdTitle, daemonName, rate, rates)
	return nil
}

// startDaemon starts a daemon that has its own network. stop ends the daemon
// and removes the network's bridge.
func (b *bench) startDaemon(ctx context.Context, s *slot) (u *pluginUser, stop func() error, err error) {
	dir, err := b.buildDaemon(ctx)
	if err != nil {
		return nil, nil, err
	}
	if u, err = newPluginUser(b.newNetwork(daemonName, "bridge", false), dir, shimName, s); err != nil {
		return nil, nil, err
	}
	daemon, err := u.startDaemon(ctx)
	if err != nil {
		return nil, nil, err
	}
	return u, func() error { return errors.Join(daemon.stop(), removeBridge(u.bridge)) }, nil
}

// pluginUsers run the plugin with the daemon and the shim, with the daemon and
// the Go program, and without the daemon.
type pluginUsers struct{ through, program, fallback *pluginUser }

func (b *bench) daemonTurns(ctx context.Context, empty string, library system, u *pluginUsers) error {
	through := u.through
	var native lives
	var nothing, beyond samples
	round := func() error {
		if err := native.live(ctx, library, through.slot); err != nil {
			return err
		}
		if err := timed(&nothing, func() error { return through.start(ctx, empty, "ADD", through.slot.id) }); err != nil {
			return err
		}
		if err := through.live(ctx); err != nil {
			return err
		}
		if err := u.program.live(ctx); err != nil {
			return err
		}
		beyond = append(beyond, through.adds[len(through.adds)-1]-native.adds[len(native.adds)-1])
		return u.fallback.live(ctx)
	}
	for range b.size.daemon + 1 {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := round(); err != nil {
			return err
		}
	}
	// The first round is not counted: it creates the shared objects of the
	// networks.
	b.report.add(emptyTitle, emptyName, seconds, nothing[1:])
	b.report.add(throughTitle, nativeName, seconds, native.adds[1:])
	b.report.add(throughTitle, daemonName, seconds, through.adds[1:])
	b.report.add(throughTitle, goTitle, seconds, u.program.adds[1:])
	b.report.add(throughTitle, noDaemonName, seconds, u.fallback.adds[1:])
	b.report.add(beyondTitle, daemonName, seconds, beyond[1:])
	b.report.add(removedTitle, daemonName, seconds, through.dels[1:])
	b.report.add(removedTitle, noDaemonName, seconds, u.fallback.dels[1:])
	return nil
}

// buildDaemon builds the programs and an empty one at the first call, and returns
// their directory.
func (b *bench) buildDaemon(ctx context.Context) (string, error) {
	if b.programs != "" {
		return b.programs, nil
	}
	dir := filepath.Join(workDir, "daemon")
	if err := b.buildEmpty(ctx, dir); err != nil {
		return "", err
	}
	for _, name := range daemonPrograms {
		if err := b.build(ctx, dir, "./cmd/"+name); err != nil {
			return "", err
		}
	}
	c := exec.CommandContext(ctx, "make", "-C", b.module, "shim", "BIN="+dir)
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the shims: %w: %s", err, out)
	}
	b.programs = dir
	return dir, nil
}

// buildEmpty builds the empty program.
func (b *bench) buildEmpty(ctx context.Context, dir string) error {
	source := filepath.Join(dir, emptyName+".go")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		return err
	}
	return b.build(ctx, dir, source)
}

// build builds a program of the module, as a release does.
func (b *bench) build(ctx context.Context, dir, of string) error {
	c := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildmode=pie", "-o", dir+"/", of)
	c.Dir, c.Env = b.module, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", of, err, out)
	}
	return nil
}

// pluginUser runs allocnet-cni as a runtime does.
type pluginUser struct {
	dir, program    string
	network, bridge string
	slot            *slot
	config          []byte
	adds, dels      samples
}

func newPluginUser(n *network, dir, program string, s *slot) (*pluginUser, error) {
	if err := n.write(); err != nil {
		return nil, err
	}
	u, err := (&pluginUser{dir: dir, program: program, network: n.name, bridge: n.bridge()}).with(s)
	if err != nil {
		return nil, err
	}
	settings := fmt.Sprintf("conf_dir = %q\nstate_dir = %q\nplugin_dirs = [%q]\nengine = \"native\"\nsocket {\n  path = %q\n}\nlog {\n  level = \"warn\"\n}\n",
		confDir, u.file("state"), workDir+"/no-plugins", u.file("sock"))
	return u, os.WriteFile(u.file("hcl"), []byte(settings), 0o600)
}

// set adds settings of the daemon.
func (u *pluginUser) set(settings string) error {
	f, err := os.OpenFile(u.file("hcl"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(settings)
	return errors.Join(err, f.Close())
}

// with returns the user with another slot and without samples.
func (u *pluginUser) with(s *slot) (*pluginUser, error) {
	other := &pluginUser{dir: u.dir, program: u.program, network: u.network, bridge: u.bridge, slot: s}
	mappings, err := portmap.Mappings(s.ports(), portmap.Options{})
	if err != nil {
		return nil, err
	}
	other.config, err = json.Marshal(object{
		"cniVersion": "1.0.0", "name": "runtime-" + u.network, "type": "allocnet", "delegate": u.network,
		"socket": u.file("sock"), "settings": u.file("hcl"),
		"capabilities": object{"portMappings": true}, "runtimeConfig": object{"portMappings": mappings},
	})
	return other, err
}

// file returns the path of a file of this user.
func (u *pluginUser) file(kind string) string {
	return filepath.Join(workDir, u.network+"."+kind)
}

// startDaemon starts the user's daemon, as runDaemon does.
func (u *pluginUser) startDaemon(ctx context.Context) (*running, error) {
	return runDaemon(ctx, u.dir, u.file("hcl"))
}

func (u *pluginUser) live(ctx context.Context) error {
	if err := timed(&u.adds, func() error { return u.add(ctx, u.slot.id) }); err != nil {
		return err
	}
	if err := timed(&u.dels, func() error { return u.del(ctx, u.slot.id) }); err != nil {
		return err
	}
	return u.settle(ctx)
}

// settle waits until the daemon has deleted everything of the allocations that are torn down.
func (u *pluginUser) settle(ctx context.Context) error {
	for {
		records, err := os.ReadDir(filepath.Join(u.file("state"), "allocs"))
		if len(records) == 0 || err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		time.Sleep(time.Millisecond)
	}
}

// crowd measures the rate of ADDs of many runtimes at once.
func (u *pluginUser) crowd(ctx context.Context, slots []*slot) (samples, error) {
	var whole samples
	each := func(act func(*pluginUser, context.Context, string) error) error {
		return atOnce(throughAtOnce, slots, func(s *slot) error {
			one, err := u.with(s)
			if err != nil {
				return err
			}
			return act(one, ctx, s.id)
		})
	}
	if err := timed(&whole, func() error { return each((*pluginUser).add) }); err != nil {
		return nil, err
	}
	return samples{float64(len(slots)) / whole[0]}, errors.Join(each((*pluginUser).del), u.settle(ctx))
}

func (u *pluginUser) add(ctx context.Context, id string) error { return u.run(ctx, "ADD", id) }

func (u *pluginUser) del(ctx context.Context, id string) error { return u.run(ctx, "DEL", id) }

func (u *pluginUser) run(ctx context.Context, command, id string) error {
	return u.start(ctx, filepath.Join(u.dir, u.program), command, id)
}

// start runs a program as a runtime runs a plugin.
func (u *pluginUser) start(ctx context.Context, program, command, id string) error {
	c := exec.CommandContext(ctx, program)
	c.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_NETNS=" + u.slot.netns,
		"CNI_IFNAME=eth0", "CNI_PATH=" + u.dir, "PATH=" + os.Getenv("PATH")}
	c.Stdin = bytes.NewReader(u.config)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("run %s %s: %w: %s", filepath.Base(program), command, err, out)
	}
	return nil
}
