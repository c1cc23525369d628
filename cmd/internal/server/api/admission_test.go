package api_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cmd/internal/server/api"
	"github.com/allocnet/allocnet/cmd/internal/server/apitest"
)

// crowdSocket is the variable that makes the test binary a crowd of clients, and
// crowdSize the variable with their number.
const (
	crowdSocket = "ALLOCNET_TEST_CROWD_SOCKET"
	crowdSize   = "ALLOCNET_TEST_CROWD_SIZE"
)

// actAsCrowd opens many connections, sends a request on the first half of them, and keeps
// all open until stdin ends.
func actAsCrowd(socket string) int {
	size, err := strconv.Atoi(os.Getenv(crowdSize))
	var held []net.Conn
	served := 0
	for i := 0; i < size && err == nil; i++ {
		var c net.Conn
		if c, err = net.Dial("unix", socket); err != nil {
			break
		}
		held = append(held, c)
		if i >= (size+1)/2 {
			continue
		}
		_, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		if status, _ := bufio.NewReader(c).ReadString('\n'); strings.Contains(status, " 200 ") {
			served++
		}
	}
	fmt.Println("holds", len(held), "served", served, err)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// crowd starts a crowd of one user, which keeps its connections until the test ends.
func crowd(t *testing.T, socket string, user uint32, size int) {
	t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), crowdSocket+"="+socket, crowdSize+"="+strconv.Itoa(size), "GORACE=atexit_sleep_ms=0")
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: crowdGroup}}
	stdin, err := c.StdinPipe()
	require.NoError(t, err)
	stdout, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		require.NoError(t, stdin.Close())
		require.NoError(t, c.Wait())
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("holds %d served %d <nil>\n", size, (size+1)/2), line, "idle connections are closed for new ones")
}

const crowdGroup = 54321

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

// TestIdleClients has users who open many connections: descriptors stay bounded, and root
// and users without connections are served at once.
func TestIdleClients(t *testing.T) {
	requireRoot(t)
	const most, excuses, spare = 64, 32, 8
	socket, _ := apitest.Serve(t, api.Options{Groups: []uint32{crowdGroup}, Limits: api.Limits{Connections: most}})
	openTo(t, socket)
	require.NoError(t, os.Chmod(socket, 0o777))
	before := descriptors(t)
	const size = 2000
	crowd(t, socket, 65534, size)
	require.LessOrEqual(t, descriptors(t), before+most+excuses+spare)
	for range 20 {
		require.Equal(t, 200, ask(t, socket, "GET", "/healthz", "").status)
		require.Equal(t, 200, ask(t, socket, "PUT", "/v1/allocs/a", alloc).status)
	}
	crowd(t, socket, 65533, 1)
	crowd(t, socket, 65532, size)
	require.Equal(t, 200, ask(t, socket, "GET", "/healthz", "").status)
	require.LessOrEqual(t, descriptors(t), before+most+excuses+2*spare)
	var held []net.Conn
	for range most / 8 { // the connections reserved for root
		held = append(held, dial(t, socket, ""))
	}
	require.Len(t, held, most/8)
}
