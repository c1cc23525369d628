// Package firewalldtest runs the real firewalld on a private system bus, for
// tests that run inside a private host.
package firewalldtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// Bus is a private system bus. DBUS_SYSTEM_BUS_ADDRESS leads to it until the
// test ends.
type Bus struct {
	t       testing.TB
	address string
	*process
}

// policy allows every client of the bus every call.
const policy = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>%s</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_type="method_call"/>
    <allow send_destination="*"/>
    <allow receive_sender="*"/>
  </policy>
</busconfig>
`

// StartBus starts a bus that is stopped when the test ends.
func StartBus(t testing.TB) *Bus {
	t.Helper()
	privhost.Require(t, "dbus-daemon", "firewalld")
	dir := t.TempDir()
	b := &Bus{t: t, address: "unix:path=" + filepath.Join(dir, "bus")}
	config := filepath.Join(dir, "bus.conf")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, policy, b.address), 0o600))
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", b.address)
	b.process = start(t, "dbus-daemon", "--config-file="+config, "--nofork", "--nopidfile")
	b.await("the bus", func() bool {
		conn, err := dbus.Connect(b.address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return b
}

// Firewalld is a running firewalld.
type Firewalld struct {
	*process
	bus *Bus
}

// Start starts firewalld with the backend "iptables" or "nftables". It is
// stopped when the test ends.
func (b *Bus) Start(backend string) *Firewalld {
	b.t.Helper()
	dir := b.t.TempDir()
	conf := "DefaultZone=public\nCleanupOnExit=yes\nIPv6_rpfilter=no\nFirewallBackend=" + backend + "\n"
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, "firewalld.conf"), []byte(conf), 0o600))
	f := &Firewalld{bus: b}
	f.process = start(b.t, "firewalld", "--nofork", "--nopid", "--system-config="+dir,
		"--log-target=file", "--log-file="+filepath.Join(dir, "log"))
	b.await("firewalld", func() bool { return f.call("zone.getActiveZones") == nil })
	return f
}

// Reload reloads firewalld, which discards its run-time configuration.
func (f *Firewalld) Reload() { require.NoError(f.bus.t, f.call("reload")) }

// Stop suspends firewalld until Continue or the end of the test. The bus still
// accepts calls to it, which remain unanswered.
func (f *Firewalld) Stop() {
	f.bus.t.Cleanup(f.Continue)
	f.signal(syscall.SIGSTOP)
}

// Continue resumes firewalld after Stop.
func (f *Firewalld) Continue() { f.signal(syscall.SIGCONT) }

func (f *Firewalld) signal(s syscall.Signal) { require.NoError(f.bus.t, f.cmd.Process.Signal(s)) }

// Sources returns the sources of a zone.
func (f *Firewalld) Sources(zone string) []string {
	var list []string
	require.NoError(f.bus.t, f.callFor(&list, "zone.getSources", zone))
	return list
}

// Bind adds a source to a zone, as an administrator does.
func (f *Firewalld) Bind(zone, source string) {
	require.NoError(f.bus.t, f.call("zone.addSource", zone, source))
}

func (f *Firewalld) call(method string, args ...any) error { return f.callFor(nil, method, args...) }

func (f *Firewalld) callFor(result any, method string, args ...any) error {
	const name = "org.fedoraproject.FirewallD1"
	conn, err := dbus.Connect(f.bus.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	prefix := name + "."
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	call := conn.Object(name, "/org/fedoraproject/FirewallD1").CallWithContext(ctx, prefix+method, 0, args...)
	if result == nil {
		return call.Err
	}
	return call.Store(result)
}

// timeout bounds every wait of this package.
const timeout = 30 * time.Second

func (b *Bus) await(what string, ready func() bool) {
	b.t.Helper()
	for end := time.Now().Add(timeout); !ready(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("%s does not answer: %s", what, b.process.output())
		}
	}
}

// process is a program that runs until End or the end of the test.
type process struct {
	cmd *exec.Cmd
	out *lines
	End func()
}

func start(t testing.TB, program string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(program, args...), out: &lines{}}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, p.cmd.Start())
	p.End = sync.OnceFunc(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		killed := time.AfterFunc(timeout, func() { _ = p.cmd.Process.Kill() })
		_ = p.cmd.Wait()
		killed.Stop()
	})
	t.Cleanup(p.End)
	return p
}

func (p *process) output() string {
	p.out.mu.Lock()
	defer p.out.mu.Unlock()
	return strings.TrimSpace(p.out.buf.String())
}

type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}
