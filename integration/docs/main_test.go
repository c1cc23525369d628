package docs

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/programs"
)

// binVariable contains the directory of the built programs, for the processes
// of single documents.
const binVariable = "ALLOCNET_TEST_DOCS_BIN"

// built is the directory to remove at the end.
var built string

func TestMain(m *testing.M) {
	code := privhost.Main(m, "/etc/cni", "/etc/allocnet", "/opt/cni")
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

// documented copies the programs that the documents use, once, and returns their
// directory.
var documented = sync.OnceValues(func() (dir string, err error) {
	if dir = os.Getenv(binVariable); dir != "" {
		return dir, nil
	}
	if dir, err = os.MkdirTemp("", "allocnet-docs-"); err != nil {
		return "", err
	}
	built = dir
	err = programs.Copy(dir, "allocnet", "allocnetd", "allocnet-cni", "allocnet-cni-shim", "allocnet-plugins", "allocnet-plugins-shim", "cnitool")
	if err != nil {
		return dir, err
	}
	for name, text := range standIns {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			return dir, err
		}
	}
	return dir, os.Setenv(binVariable, dir)
})

// standIns replace programs that a private host lacks.
var standIns = map[string]string{
	"sudo": "#!/bin/sh\nexec env \"$@\"\n",
	// systemctl is systemd, of which only allocnetd's units are there. The daemon of a
	// document ends after a while by itself.
	"systemctl": `#!/bin/bash
answers() { curl -fs --unix-socket /run/allocnet/allocnetd.sock http://localhost/healthz >/dev/null; }
start() {
	answers && return
	timeout 600 allocnetd run </dev/null >>/run/allocnetd.log 2>&1 &
	echo $! >/run/allocnetd.pid
	for ((i = 0; i < 600; i++)); do
		answers && return
		sleep 0.05
	done
	cat /run/allocnetd.log
	return 1
}
stop() {
	test ! -e /run/allocnetd.pid || { kill $(cat /run/allocnetd.pid); tail --pid=$(cat /run/allocnetd.pid) -f /dev/null; rm /run/allocnetd.pid; }
}
units="allocnetd.socket allocnetd.service"
case "$*" in
"enable --now $units" | "start $units") start ;;
"stop $units") stop ;;
"restart allocnetd") stop && start ;;
"reload allocnetd") allocnetd reload $(pgrep -P $(cat /run/allocnetd.pid)) ;;
*) echo "systemctl $*: not known here" >&2; exit 1 ;;
esac
`,
}
