package settings

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
)

// load loads a file with the given content, which errors call x.hcl.
func load(t *testing.T, content string, environ []string, args ...string) (Settings, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "x.hcl")
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	set := pflag.NewFlagSet("x", pflag.ContinueOnError)
	source := Source{File: file, Environ: environ, Flags: NewFlags(set)}
	require.NoError(t, set.Parse(args))
	s, err := source.Load()
	if err == nil {
		return s, ""
	}
	require.Len(t, Errors(err), len(strings.Split(err.Error(), "\n")), "each problem is an *Error of one line")
	return s, strings.ReplaceAll(err.Error(), filepath.Dir(file)+"/", "")
}

func TestPrecedence(t *testing.T) {
	file := `
timeout  = "1s"
engine   = "exec"
networks = ["a", "b"]
retry { attempts = 7 }`
	environ := []string{"ALLOCNETD_TIMEOUT=2s", "ALLOCNETD_ENGINE=native", "ALLOCNETD_NETWORKS=", "OTHER=1", "ALLOCNETD_CONFIG=/x"}
	s, err := load(t, file, environ, "--timeout=3s")
	require.Empty(t, err)
	require.Equal(t, 3*time.Second, s.Timeout, "the flag")
	require.Equal(t, configurator.EngineNative, s.Engine, "the variable")
	require.Equal(t, []string{"a", "b"}, s.Networks, "an empty variable is unset: the file")
	require.Equal(t, 7, s.Retry.Attempts, "a block of the file")
	require.Equal(t, Default().ConfDir, s.ConfDir, "the default")
}

func TestLists(t *testing.T) {
	environ := []string{"ALLOCNETD_PLUGIN_DIRS=/a:/b", "ALLOCNETD_SUBNETS=10.1.0.0/16,fd00::/64"}
	s, err := load(t, `networks = ["a"]`, environ, "--networks", "x", "--networks=y,z", "--manager-enabled", "--engine=exec", "--engine=native")
	require.Empty(t, err)
	require.Equal(t, []string{"/a", "/b"}, s.PluginDirs)
	require.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/64")}, s.Subnets)
	require.Equal(t, []string{"x", "y", "z"}, s.Networks)
	require.True(t, s.Manager.Enabled)
	require.Equal(t, configurator.EngineNative, s.Engine, "not a list: the last value")

	s, err = load(t, `networks = ["a"]`, nil, "--networks=")
	require.Empty(t, err)
	require.Empty(t, s.Networks, "a flag can empty a list of the file")
}

func TestTextIsReadAsWritten(t *testing.T) {
	s, err := load(t, `
socket    { mode = "0600" }
limits    { body = "512KiB" }
log       { level = "debug" }
retry     { delay = "0s" }
state_dir = "/a/../b/"`, nil)
	require.Empty(t, err)
	require.EqualValues(t, 0o600, s.Socket.Mode)
	require.EqualValues(t, 512<<10, s.Limits.Body)
	require.Equal(t, hclog.Debug, s.Log.Level)
	require.Equal(t, "/b", s.StateDir)
	require.Negative(t, s.Configurator().Retry.Delay, "0 is the configurator's default")
	require.Equal(t, time.Second, s.Configurator().Retry.Jitter)
}

func TestErrors(t *testing.T) {
	for name, test := range map[string]struct{ file, want string }{
		"syntax":             {"engine = ", `x.hcl:1: Missing expression: Expected the start of an expression, but found the end of the file`},
		"unknown":            {"\nengin = 1", `x.hcl:2: engin: there is no such setting: did you mean "engine"?`},
		"unknown block":      {"logs {}", `x.hcl:1: logs: there is no such block: did you mean "log"?`},
		"unknown in block":   {"log {\n  lvl = 1\n}", `x.hcl:2: log.lvl: there is no such setting: did you mean "level"?`},
		"unlike all":         {"colour = 1", `x.hcl:1: colour: there is no such setting: remove it, or write one of socket, conf_dir,`},
		"unlike in block":    {"log { x = 1 }", `x.hcl:1: log.x: there is no such setting: remove it, or write one of level, json`},
		"in no block":        {`level = "info"`, `x.hcl:1: level: there is no such setting: "level" belongs in the block log`},
		"in a block":         {`log { timeout = "1s" }`, `x.hcl:1: log.timeout: there is no such setting: "timeout" belongs at the top level`},
		"block in a block":   {"log {\n log {}\n}", `x.hcl:2: log.log: there is no such block: remove it`},
		"block twice":        {"log {}\nlog {}", `x.hcl:2: log: is already in line 1: merge the two blocks`},
		"setting twice":      {"engine = \"exec\"\nengine = \"exec\"", `x.hcl:2: Attribute redefined`},
		"pool without size":  {`pool "web" {}`, `x.hcl:1: pool "web": has no size: write for example size = 32`},
		"pool of no network": {`pool "../x" { size = 1 }`, `x.hcl:1: pool "../x": "../x=1" is not a network and a number from 0 to 4096`},
		"pool too large":     {`pool "web" { size = 5000 }`, `x.hcl:1: pool "web": "web=5000" is not a network and a number from 0 to 4096`},
		"pool twice":         {"pool \"web\" { size = 1 }\npool \"web\" { size = 2 }", `x.hcl:2: pool "web": "web" occurs twice`},
		"pool with another":  {`pool "web" { dir = "/x" }`, `x.hcl:1: pool "web".dir: there is no such setting: the block of a network has only size`},
		"pool of text":       {`pool "web" { size = "1" }`, `x.hcl:1: pool "web".size: must be a whole number without quotes`},
		"block in a pool":    {"pool \"web\" {\n size = 1\n x {}\n}", `x.hcl:3: pool "web".x: there is no such block`},
		"label":              {`log "x" {}`, `x.hcl:1: log: has a label: write only log {`},
		"block for value":    {`engine { }`, `x.hcl:1: engine: there is no such block`},
		"value for block":    {`log = 1`, `x.hcl:1: log: there is no such setting`},
		"number for text":    {`timeout = 5`, `x.hcl:1: timeout: must be text in quotes, such as timeout = "1m"`},
		"text for number":    {`retry { attempts = "3" }`, `x.hcl:1: retry.attempts: must be a whole number without quotes, such as attempts = 3`},
		"no whole number":    {`retry { attempts = 1.5 }`, `x.hcl:1: retry.attempts: must be a whole number without quotes`},
		"endless number":     {`retry { attempts = 1e999999999 }`, `x.hcl:1: retry.attempts: must be a whole number`},
		"text for list":      {`networks = "a"`, `x.hcl:1: networks: must be a list of texts in quotes`},
		"numbers in list":    {`networks = [1]`, `x.hcl:1: networks: must be a list of texts in quotes`},
		"text for boolean":   {`log { json = "yes" }`, `x.hcl:1: log.json: must be true or false`},
		"null":               {`engine = null`, `x.hcl:1: engine: must be text`},
		"variable":           {`engine = engine`, `x.hcl:1: engine: must be text`},
		"template":           {`engine = "${1}"`, `x.hcl:1: engine: must be text`},
		"function":           {`engine = f("a")`, `x.hcl:1: engine: must be text`},
		"engine":             {`engine = "x"`, `x.hcl:1: engine: "x" is not one of ["auto" "exec" "native"]`},
		"relative path":      {`conf_dir = "a"`, `x.hcl:1: conf_dir: "a" is not an absolute path: begin it with /`},
		"no path":            {`conf_dir = ""`, `x.hcl:1: conf_dir: "" is not an absolute path`},
		"duration":           {`timeout = "5"`, `x.hcl:1: timeout: "5" is not a duration: write it with its unit, such as "5s" or "1m30s"`},
		"short":              {`timeout = "0s"`, `x.hcl:1: timeout: "0s" is too short`},
		"negative":           {`retry { delay = "-1s" }`, `x.hcl:1: retry.delay: "-1s" is too short`},
		"long":               {`timeout = "9999h"`, `x.hcl:1: timeout: "9999h" is too long: at most 1000h`},
		"size":               {`limits { body = "1M" }`, `x.hcl:1: limits.body: "1M" is not a size from 1KiB to 64MiB: write it with its unit`},
		"huge":               {`limits { body = "9223372036854775807GiB" }`, `is not a size`},
		"small":              {`limits { body = "1B" }`, `is not a size`},
		"no operations":      {`limits { operations = 0 }`, `x.hcl:1: limits.operations: "0" is not a whole number from 1 to 100000`},
		"mode":               {`socket { mode = "0888" }`, `x.hcl:1: socket.mode: "0888" are not octal permissions: write for example "0660"`},
		"level":              {`log { level = "loud" }`, `x.hcl:1: log.level: "loud" is not a level`},
		"subnet":             {`subnets = ["10.0.0.0"]`, `x.hcl:1: subnets: "10.0.0.0" is not a subnet: write for example "10.202.0.0/16"`},
		"table main":         {`routes { table = 254 }`, `x.hcl:1: routes.table: "254" is not a routing table for a routing daemon`},
		"table too large":    {`routes { table = 4294967296 }`, `x.hcl:1: routes.table: "4294967296" is not a routing table`},
		"cluster":            {`routes { cluster = ["10.0.0.0"] }`, `x.hcl:1: routes.cluster: "10.0.0.0" is not a subnet`},
		"cluster's hosts":    {`routes { cluster = ["10.0.0.1/8"] }`, `x.hcl:1: routes.cluster: embedded network "allocnet": routes: cluster network "10.0.0.1/8": has host bits set: the network is 10.0.0.0/8`},
		"protocol of BIRD":   {`routes { protocol = 12 }`, `x.hcl:1: routes.protocol: "12" is not a free protocol of routes`},
		"protocol":           {`routes { protocol = 256 }`, `x.hcl:1: routes.protocol: "256" is not a free protocol of routes`},
		"subnets":            {`subnets = ["10.0.0.0/16", "10.1.0.0/16"]`, `x.hcl:1: subnets: `},
		"network":            {`networks = ["a b"]`, `x.hcl:1: networks: "a b" is not the name of a network`},
		"network twice":      {`networks = ["a", "a"]`, `x.hcl:1: networks: "a" occurs twice: remove one`},
		"interface":          {`interface_prefix = "a/b"`, `x.hcl:1: interface_prefix: "a/b" cannot begin the name of an interface`},
		"own file":           {`manager { own_file = "../x.conflist" }`, `x.hcl:1: manager.own_file: "../x.conflist" is not the name of a file that ends in ".conflist"`},
		"label source":       {`manager { labels_from = ["job"] }`, `x.hcl:1: manager.labels_from: "job" is not a label and the name of one of CNI_ARGS`},
		"label twice":        {`manager { labels_from = ["a=B", "a=C"] }`, `x.hcl:1: manager.labels_from: "a" occurs twice: remove one`},
		"policy source":      {`manager { policy_from = "a;b" }`, `x.hcl:1: manager.policy_from: "a;b" is not the name of one of CNI_ARGS`},
		"URL":                {`telemetry { otlp_endpoint = "localhost:4318" }`, `x.hcl:1: telemetry.otlp_endpoint: "localhost:4318" is not a URL`},
		"reconcile":          {`reconcile { mode = "x" }`, `x.hcl:1: reconcile.mode: "x" is not one of ["repair" "report"]`},
		"long socket":        {`socket { path = "/` + strings.Repeat("x", 107) + `" }`, `is too long for a socket: use at most 107 bytes`},
		"relative socket":    {`socket { path = "s" }`, `x.hcl:1: socket.path: "s" is not an absolute path`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, test.file, nil)
			require.Contains(t, err, test.want)
		})
	}
}

// TestAllErrors has several errors of each source.
func TestAllErrors(t *testing.T) {
	_, err := load(t, "timeout = 1\n\nlog { level = 2 }\nengin = 1\nnetworks = [\"a b\", \"c d\"]",
		[]string{"ALLOCNETD_RETRY_DELAY=x", "ALLOCNETD_NOPE=1"}, "--engine=a", "--limits-queue=b")
	var lines []string
	for _, line := range strings.Split(err, "\n") {
		where, _, _ := strings.Cut(line, ": ")
		lines = append(lines, where)
	}
	require.Equal(t, []string{
		"x.hcl:1", "x.hcl:3", "x.hcl:4", "x.hcl:5", "x.hcl:5", "environment variable ALLOCNETD_RETRY_DELAY",
		"environment variable ALLOCNETD_NOPE", "flag --engine", "flag --limits-queue",
	}, lines)
	require.Contains(t, err, "environment variable ALLOCNETD_NOPE: there is no such setting: unset it")
	require.Contains(t, err, `flag --engine: engine: "a" is not one of`)
	_, err = load(t, "", []string{"ALLOCNETD_RETRY_DELAI=1s"})
	require.Equal(t, "environment variable ALLOCNETD_RETRY_DELAI: there is no such setting: did you mean ALLOCNETD_RETRY_DELAY?", err)
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	_, err := Source{File: filepath.Join(dir, "none")}.Load()
	require.ErrorContains(t, err, "none: cannot be read: ", "a named file must exist")
	_, err = Source{File: dir}.Load()
	require.ErrorContains(t, err, "is not a regular file")
	large := filepath.Join(dir, "large")
	require.NoError(t, os.WriteFile(large, make([]byte, maxFile+1), 0o600))
	_, err = Source{File: large}.Load()
	require.ErrorContains(t, err, "is larger than 256KiB")
	require.NoFileExists(t, DefaultFile)
	s, err := Source{}.Load()
	require.NoError(t, err)
	require.Equal(t, Default(), s)
}

// TestErrorsOfOthers checks that Errors returns nothing for other errors.
func TestErrorsOfOthers(t *testing.T) {
	require.Nil(t, Errors(nil))
	require.Nil(t, Errors(os.ErrNotExist))
}

func TestChanges(t *testing.T) {
	running, next := Default(), Default()
	live, restart := next.Changes(&running)
	require.Empty(t, live)
	require.Empty(t, restart)
	next.Timeout, next.Networks, next.StateDir, next.Log.JSON = time.Second, []string{"a"}, "/x", true
	live, restart = next.Changes(&running)
	require.Equal(t, []string{"networks", "timeout"}, live)
	require.Equal(t, []string{"state_dir", "log.json"}, restart)
	next.Keep(&running)
	live, restart = next.Changes(&running)
	require.Equal(t, []string{"networks", "timeout"}, live)
	require.Empty(t, restart)
}

// TestForeignVariables checks that the variables of Kubernetes for a service of that name
// are ignored, and any unknown variable in the environment of the plugin.
func TestForeignVariables(t *testing.T) {
	for name, kubernetes := range map[string]bool{
		"SERVICE_HOST": true, "SERVICE_PORT": true, "SERVICE_PORT_HTTP": true, "PORT": true, "PORT_80_TCP": true,
		"PORT_80_TCP_PROTO": true, "PORT_80_UDP_PORT": true, "PORT_80_SCTP_ADDR": true,
		"METRICS_SERVICE_HOST": true, "METRICS_SERVICE_PORT_WEB_UI": true, "METRICS_PORT": true, "METRICS_PORT_80_TCP_ADDR": true,
		"NOPE": false, "STATE_DIRR": false, "PORTS": false, "PORT_80": false, "PORT_X_TCP": false, "IMPORT": false,
		"SERVICE_HOSTS": false, "PORT_80_TCP_X": false,
	} {
		environ := []string{Prefix + name + "=tcp://10.0.0.1:80"}
		_, err := load(t, "", environ)
		require.Equal(t, kubernetes, err == "", name)
		s, wrong := Source{Environ: append(environ, "ALLOCNETD_STATE_DIR=/x"), Foreign: true}.Load()
		require.NoError(t, wrong)
		require.Equal(t, "/x", s.StateDir)
	}
	for i := range table {
		require.False(t, ofKubernetes.MatchString(table[i].variable()), "a setting must not have such a name")
	}
	_, err := Source{Environ: []string{"ALLOCNETD_ENGINE=x"}, Foreign: true}.Load()
	require.ErrorContains(t, err, "ALLOCNETD_ENGINE", "an invalid setting is an error")
}

func TestListenAddresses(t *testing.T) {
	for address, valid := range map[string]bool{
		"127.0.0.1:9653": true, "[::1]:9653": true, ":9653": true, "[fe80::1%eth0]:9653": true, "0.0.0.0:1": true, "": true,
		"127.0.0.1": false, "127.0.0.1:0": false, "localhost:9653": false, "::1:9653": false, ":0": false, ":65536": false, ":": false, ":http": false, "9653": false,
	} {
		s, err := load(t, `metrics { listen = "`+address+`" }`, nil)
		require.Equal(t, valid, err == "", "%s: %s", address, err)
		if valid {
			require.Equal(t, address, s.Metrics.Listen)
		}
	}
}

func TestLoopbackAddresses(t *testing.T) {
	for address, valid := range map[string]bool{
		"127.0.0.1:0": true, "127.9.0.1:80": true, "[::1]:9654": true, "": true,
		":9654": false, "0.0.0.0:9654": false, "[::]:9654": false, "192.0.2.1:80": false, "localhost:80": false, "127.0.0.1": false, "[::ffff:127.0.0.1]:80": false,
	} {
		s, err := load(t, `ui = "`+address+`"`, nil)
		require.Equal(t, valid, err == "", "%s: %s", address, err)
		if valid {
			require.Equal(t, address, s.UI)
		}
	}
}

// TestProblem names the place that has set a value.
func TestProblem(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.hcl")
	require.NoError(t, os.WriteFile(file, []byte("engine = \"exec\"\n\nmetrics {\n listen = \":1\"\n}"), 0o600))
	problem := func(key string, environ []string, args ...string) string {
		set := pflag.NewFlagSet("x", pflag.ContinueOnError)
		source := Source{File: file, Environ: environ, Flags: NewFlags(set)}
		require.NoError(t, set.Parse(args))
		return strings.TrimPrefix(source.Problem(key, errors.New("no\n\tgood")).Error(), filepath.Dir(file)+"/")
	}
	environ := []string{"ALLOCNETD_METRICS_LISTEN=:2", "ALLOCNETD_ENGINE="}
	require.Equal(t, "x.hcl:4: metrics.listen: no good", problem("metrics.listen", nil))
	require.Equal(t, "environment variable ALLOCNETD_METRICS_LISTEN: metrics.listen: no good", problem("metrics.listen", environ))
	require.Equal(t, "flag --metrics-listen: metrics.listen: no good", problem("metrics.listen", environ, "--metrics-listen=:3"))
	require.Equal(t, "x.hcl:1: engine: no good", problem("engine", environ), "an empty variable is unset")
	require.Equal(t, "x.hcl: metrics.web_config: no good", problem("metrics.web_config", nil))
}
