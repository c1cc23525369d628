package main

import (
	"context"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/internal/testing/testhost"
)

// modeVariable makes the test binary run the program or a guest.
const modeVariable = "MICROVM_TEST_MODE"

func TestMain(m *testing.M) {
	switch os.Getenv(modeVariable) {
	case "program":
		main()
	case "guest":
		log.Fatal(runGuest())
	default:
		os.Exit(privhost.Main(m))
	}
}

func TestMicrovm(t *testing.T) {
	privhost.Require(t, "env")
	_, err := os.Stat("/dev/net/tun")
	skip.Unless(t, err == nil, "the test needs /dev/net/tun")
	outside := testhost.Outside(t)
	before, err := hostsnap.Take(snapshotOptions)
	require.NoError(t, err)

	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, "-id", "vm-1", "-port", "7000:7/udp", "--", "env", modeVariable+"=guest", self)
	cmd.Env = append(os.Environ(), modeVariable+"=program")
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, cmd.Start())
	printed := func() string {
		text, err := os.ReadFile(out.Name())
		require.NoError(t, err)
		return string(text)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		t.Log(printed())
	})

	require.Eventually(t, func() bool { return strings.Contains(printed(), "the gateway answers") }, 20*time.Second, 5*time.Millisecond, "the guest reaches the host")
	require.NoError(t, echoed("127.0.0.1:7000"), "the host reaches the guest")
	for _, address := range []string{testhost.Host4.Addr().String() + ":7000", "[" + testhost.Host6.Addr().String() + "]:7000"} {
		require.NoError(t, outside.Do(func() error { return echoed(address) }), "another machine reaches the guest at %s", address)
	}

	nets, err := configurator.New(configurator.Config{Network: "allocnet"})
	require.NoError(t, err)
	defer nets.Close()
	require.NoError(t, nets.CheckOnly(t.Context(), allocnet.Allocation{ID: "vm-1"}), "the tap does not disturb CHECK")
	err = run(t.Context(), "allocnet", allocnet.Allocation{ID: "vm-1"}, []string{"true"})
	require.ErrorIs(t, err, allocnet.ErrExists, "another one with the same ID leaves it alone")
	require.NoError(t, echoed("127.0.0.1:7000"))

	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait())
	requireUnchanged(t, before)
}

// TestMonitorFails: the error of the monitor is that of the program, and nothing is left.
func TestMonitorFails(t *testing.T) {
	privhost.Require(t)
	before, err := hostsnap.Take(snapshotOptions)
	require.NoError(t, err)
	alloc := allocnet.Allocation{ID: "vm-1"}
	require.ErrorContains(t, run(t.Context(), "allocnet", alloc, []string{"false"}), "exit status 1")
	require.ErrorIs(t, run(t.Context(), "allocnet", alloc, []string{"no-such-monitor"}), exec.ErrNotFound)
	requireUnchanged(t, before)
}

func TestEnvironment(t *testing.T) {
	nic := allocnet.Interface{MAC: "02:00:00:00:00:01", Addresses: []allocnet.Address{{Address: "10.0.0.2/16", Gateway: "10.0.0.1"}, {Address: "fd00::2/64", Gateway: "fd00::1"}}}
	require.Equal(t, []string{
		"TAP=tap0", "MAC=02:00:00:00:00:01", "MTU=1400", "ADDRESS=10.0.0.2/16", "GATEWAY=10.0.0.1", "ADDRESS_IPV6=fd00::2/64", "GATEWAY_IPV6=fd00::1",
	}, environment(nic, 1400))
}

// snapshotOptions ignores what the first use of the network leaves on purpose.
var snapshotOptions = hostsnap.Options{Persistent: true, Ignore: func(line string) bool {
	return strings.HasPrefix(line, "file "+configurator.DefaultStateDir+"/")
}}

func requireUnchanged(t *testing.T, before hostsnap.Snapshot) {
	t.Helper()
	after, err := hostsnap.Take(snapshotOptions)
	require.NoError(t, err)
	require.Empty(t, hostsnap.Diff(before, after), "nothing is left")
}

// echoed sends a datagram to an address and waits until it comes back.
func echoed(address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "hello"); err != nil {
		return err
	}
	answer := make([]byte, 64)
	n, err := conn.Read(answer)
	if err == nil && string(answer[:n]) != "hello" {
		err = io.ErrUnexpectedEOF
	}
	return err
}
