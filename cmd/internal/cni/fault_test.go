package cni

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

func destroy(path string) error { return sandbox.Destroy(path) }

func (w *workspace) breakRecord(id string) {
	w.t.Helper()
	require.NoError(w.t, os.WriteFile(filepath.Join(w.dir, "state", "allocs", id+".json"), []byte("{"), 0o600))
}

// TestPluginErrors: the runtime gets the errors of plugins unchanged.
func TestPluginErrors(t *testing.T) {
	for _, engine := range []configurator.Engine{configurator.EngineNative, configurator.EngineExec} {
		t.Run(string(engine), func(t *testing.T) {
			w := newWorkspace(t, engine)
			add := w.env("ADD", "c1")
			for _, code := range []uint{7, 11, 50, 123} {
				conf := ours("1.0.0", `"plugins":[`+w.fake("one", map[string]fakeplugin.Behaviour{"ADD": {Code: code, Msg: "it says so"}})+`]`)
				require.Equal(t, &Error{CNIVersion: "1.0.0", Code: code, Msg: "it says so"}, w.refuse(add, conf))
			}
			conf := ours("1.0.0", `"plugins":[`+w.fake("one", map[string]fakeplugin.Behaviour{"ADD": adds["ADD"], "CHECK": {Code: 123, Msg: "not so"}})+`]`)
			w.serve(add, conf)
			require.Equal(t, &Error{CNIVersion: "1.0.0", Code: 123, Msg: "not so"}, w.refuse(as(add, "CHECK"), conf))
			w.serve(as(add, "DEL"), conf)
			crash := ours("1.0.0", `"plugins":[`+w.fake("one", map[string]fakeplugin.Behaviour{"ADD": {Exit: 3, Stderr: "oh"}})+`]`)
			require.Equal(t, uint(999), w.refuse(add, crash).Code)
		})
	}
}

// stuck is a backend whose Teardown fails.
type stuck struct {
	memory
	err error
}

func (s stuck) Teardown(context.Context, configurator.Allocation) error { return s.err }

// TestDelDoesNotSucceedByItsWords: go-cni, and with it containerd, takes an error of DEL with these words for success.
func TestDelDoesNotSucceedByItsWords(t *testing.T) {
	for _, err := range []error{
		fmt.Errorf("%w: iptables: executable file not found in $PATH", configurator.ErrIncomplete),
		fmt.Errorf("%w: %w", configurator.ErrIncomplete, &fs.PathError{Op: "open", Path: "/x", Err: fs.ErrNotExist}),
		fmt.Errorf("%w: %w", configurator.ErrIncomplete, syscall.ENOENT),
		types.NewError(11, "lease not found", "table not found"),
	} {
		s := New(Options{Backend: func() allocnet.Service { return stuck{memory{}, err} }})
		got := s.Serve(t.Context(), Request{Env: Env{Command: Del, ContainerID: "c1", IfName: "eth0", Path: "/bin"}, Config: []byte(ours("1.0.0", ""))})
		require.NotNil(t, got.Error)
		require.Equal(t, CodeTryAgainLater, got.Error.Code)
		require.NotRegexp(t, "not found|no such file or directory", got.Error.Msg+got.Error.Details)
	}
}

// TestPluginQuotes: if a plugin's error contains its configuration, the runtime
// gets the rest of the error.
func TestPluginQuotes(t *testing.T) {
	for _, engine := range []configurator.Engine{configurator.EngineNative, configurator.EngineExec} {
		for i, quote := range []struct{ name, script string }{
			{"it is all", "cat"},
			{"a section", `printf 'cannot use {"password":"%s"}' hunter2`},
			{"to stderr", "cat >&2"},
			{"with words", `printf 'got '; cat; printf ' of all'`},
			{"cut off", `printf 'got '; head -c -9`},
			{"as an error", `printf '{"code":123,"msg":"got %s of all"}' "$(sed 's/"/\\"/g')"`},
			{"in details", `printf '{"code":123,"msg":"no","details":"got %s of all"}' "$(sed 's/"/\\"/g')"`},
		} {
			t.Run(string(engine)+" "+quote.name, func(t *testing.T) {
				if engine == configurator.EngineExec {
					skip.InTurn(t, i, 4)
				}
				w := newWorkspace(t, engine)
				text := "#!/bin/sh\n[ $CNI_COMMAND = ADD ] || exit 0\n" + quote.script + "\nexit 1\n"
				require.NoError(t, os.WriteFile(filepath.Join(w.dir, "bin", "quotes"), []byte(text), 0o755))
				e := w.refuse(w.env("ADD", "c1"), ours("1.0.0", `"plugins":[{"type":"quotes","password":"`+secret+`"}]`))
				if quote.name != "it is all" || engine == configurator.EngineNative { // go-cni takes this for an empty error
					require.Contains(t, e.Msg+e.Details, "{...}")
				}
			})
		}
	}
}

// TestMayBeInABrokenFile: the error for a missing network names a broken file that
// may contain it, and tells the runtime to try again.
func TestMayBeInABrokenFile(t *testing.T) {
	w := newWorkspace(t, configurator.EngineNative)
	add, conf := w.env("ADD", "c1"), ours("1.0.0", `"delegate":"none"`)
	require.Equal(t, uint(7), w.refuse(add, conf).Code)
	require.NoError(t, os.WriteFile(filepath.Join(w.conf, "none.conflist"), []byte("{"), 0o600))
	e := w.refuse(add, conf)
	require.Equal(t, uint(11), e.Code)
	require.Contains(t, e.Msg, "skipped, and may hold it: none.conflist")
}

// vanishing is a backend whose records vanish between two calls.
type vanishing struct{ allocnet.Service }

func (v vanishing) Check(context.Context, configurator.Allocation) error {
	return fmt.Errorf("%w: gone", configurator.ErrNotFound)
}

// unreadable is a backend that cannot read records for the moment.
type unreadable struct{ allocnet.Service }

func (unreadable) Get(context.Context, string) (*configurator.Record, error) {
	return nil, syscall.EMFILE
}

// TestOwnerUnknown: an attachment whose owner cannot be read is neither added nor removed.
func TestOwnerUnknown(t *testing.T) {
	w := newWorkspace(t, configurator.EngineNative)
	add, conf := w.env("ADD", "c1"), ours("1.0.0", `"delegate":"br"`)
	w.serve(add, conf)
	w.options.Backend = func() allocnet.Service { return unreadable{w.c} }
	require.Contains(t, w.refuse(as(add, "DEL"), conf).Msg, syscall.EMFILE.Error())
	require.Contains(t, w.refuse(add, conf).Msg, syscall.EMFILE.Error())
	w.options.Backend = func() allocnet.Service { return w.c }
	w.serve(as(add, "CHECK"), conf)
	w.serve(as(add, "DEL"), conf)
}

func TestCheckBesideDel(t *testing.T) {
	w := newWorkspace(t, configurator.EngineNative)
	add, conf := w.env("ADD", "c1"), ours("1.0.0", `"delegate":"br"`)
	w.serve(add, conf)
	w.options.Backend = func() allocnet.Service { return vanishing{w.c} }
	require.Equal(t, uint(3), w.refuse(as(add, "CHECK"), conf).Code)
	w.serve(as(add, "DEL"), conf)
}

func TestBadConfigurations(t *testing.T) {
	w := newWorkspace(t, configurator.EngineNative)
	w.network("ours", `"1.0.0"`, `{"type":"allocnet","delegate":"br"}`)
	add := w.env("ADD", "c1")
	hidden := `"x":"` + secret + `"`
	for _, test := range []struct {
		conf string
		code uint
		text string
	}{
		{``, 6, "cannot be read"},
		{`[]`, 6, "cannot be read"},
		{`{"cniVersion":"1.0.0","name":"` + secret, 6, "cannot be read"},
		{`{"cniVersion":"1.0.0"}`, 7, `"name" is missing`},
		{`{"cniVersion":"1.0.0","name":"a/b"}`, 7, "invalid characters"},
		{ours("1.0.0", `"delegat":"`+secret+`"`), 7, "delegat (line 1, column"},
		{ours("1.0.0", `"Delegate":"`+secret+`"`), 7, "Delegate (line"},
		{ours("1.0.0", `"delegate":"br","delegate":"`+secret+`"`), 7, "is there twice"},
		{ours("1.0.0", `"delegate":7`), 7, "must be a string"},
		{ours("1.0.0", `"delegate":""`), 7, "has no name"},
		{ours("1.0.0", `"delegates":[]`), 7, "is empty"},
		{ours("1.0.0", `"plugins":[]`), 7, "is empty"},
		{ours("1.0.0", `"delegate":"br","plugins":[{`+hidden+`}]`), 7, "give one of"},
		{ours("1.0.0", `"delegates":["br","br"]`), 7, "named twice"},
		{ours("1.0.0", `"delegate":"none"`), 7, `network "none" not found`},
		{ours("1.0.0", `"delegate":"ours"`), 7, "its plugin is allocnet itself"},
		{ours("1.0.0", `"delegate":"br","args":{"cni":{`+hidden+`}}`), 7, `"args" cannot be handed on`},
		{ours("1.0.0", `"plugins":[{"type":"one"},{"type":"allocnet",`+hidden+`}]`), 7, "would call itself"},
		{ours("1.0.0", `"plugins":[{`+hidden+`}]`), 7, `no "type"`},
		{ours("1.0.0", `"plugins":["`+secret+`"]`), 7, "plugins: plugin 1 of 1"},
		{ours("1.0.0", `"plugins":["`+secret+`"],"args":{}`), 7, "plugins[0]"},
		{ours("1.0.0", `"plugins":[{"type":"missing",`+hidden+`}]`), 999, "plugin not installed"},
		{ours("1.0.0", `"plugins":[{"type":"bridge","mtu":"`+secret+`","ipam":{}}]`), 6, "cannot be read"},
		{ours("1.0.0", `"delegate":"br","prevResult":"`+secret+`"`), 7, "prevResult"},
		{ours("1.0.0", `"delegate":"br","prevResult":{"cniVersion":"9.0.0",`+hidden+`}`), 7, "prevResult"},
		{ours("1.0.0", `"delegate":"br","prevResult":{"ips":[{"address":"10.0.0.1/8","interface":7}]}`), 7, "prevResult"},
		{ours("1.0.0", `"delegate":"br","runtimeConfig":{"mac":["`+secret+`"]}`), 7, "runtimeConfig: mac"},
		{ours("1.0.0", `"delegate":"br","runtimeConfig":{"mac":"x"}`), 7, `mac "x"`},
		{ours("1.0.0", `"delegate":"br","runtimeConfig":{"dns":{`+hidden+`}}`), 7, "runtimeConfig: dns"},
		{ours("1.0.0", `"delegate":"br","runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":1}]}`), 7, "portMappings[0]"},
		{ours("1.0.0", `"delegate":"br","runtimeConfig":{"portMappings":[{"hostPort":-1,"containerPort":1,"protocol":"tcp"}]}`), 7, "portMappings[0]: hostPort is negative"},
		{ours("1.0.0", `"plugins":[`+w.fake("one", adds)+`],"runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":1,"protocol":"icmp"}]}`), 7, "icmp"},
	} {
		e := w.refuse(add, test.conf)
		require.Contains(t, e.Msg+e.Details, test.text, test.conf)
		require.Equal(t, test.code, e.Code, test.conf)
	}
	require.Empty(t, w.records())
}

func TestBadEnvironments(t *testing.T) {
	w := newWorkspace(t, configurator.EngineNative)
	good := w.env("ADD", "c1")
	conf := ours("1.1.0", `"delegate":"br"`)
	for _, test := range []struct {
		change func(*Env)
		code   uint
		text   string
	}{
		{func(e *Env) { e.Command = "add" }, 4, `unknown CNI_COMMAND "add"`},
		{func(e *Env) { e.ContainerID, e.Netns = "", "" }, 4, "ADD requires CNI_CONTAINERID, CNI_NETNS"},
		{func(e *Env) { e.Command, e.IfName = "DEL", "" }, 4, "DEL requires CNI_IFNAME"},
		{func(e *Env) { e.Command, e.Netns = "CHECK", "" }, 4, "CHECK requires CNI_NETNS"},
		{func(e *Env) { e.ContainerID = "../c" }, 4, "invalid characters"},
		{func(e *Env) { e.Command, e.ContainerID = "DEL", "../c" }, 4, "invalid characters"},
		{func(e *Env) { e.ContainerID = strings.Repeat("c", 129) }, 4, "more than 128"},
		{func(e *Env) { e.IfName = "a/b" }, 4, "/"},
		{func(e *Env) { e.IfName = "a%d" }, 4, "%"},
		{func(e *Env) { e.IfName = "sixteen-letters-" }, 4, "less than 16"},
		{func(e *Env) { e.Netns = "netns" }, 4, "absolute"},
		{func(e *Env) { e.Netns = "/run/netns/none" }, 8, "none"},
		{func(e *Env) { e.Netns = "/dev/null" }, 8, "not a network namespace"},
		{func(e *Env) { e.Netns = "/proc/self/ns/net" }, 8, "of the host"},
		{func(e *Env) { e.Args = "A=b;" }, 4, "KEY=VALUE"},
		{func(e *Env) { e.Args = "=b" }, 4, "KEY=VALUE"},
		{func(e *Env) { e.Args = "A=b;c" }, 4, `"c"`},
	} {
		env := good
		test.change(&env)
		e := w.refuse(env, conf)
		require.Contains(t, e.Msg+e.Details, test.text)
		require.Equal(t, test.code, e.Code, test.text)
	}
	require.Empty(t, w.records())
}

func TestFault(t *testing.T) {
	wrap := func(errs ...any) error { return fmt.Errorf("w: %w: %w", errs...) }
	for _, test := range []struct {
		err  error
		code uint
		msg  string
	}{
		{wrap(configurator.ErrIncomplete, types.NewError(11, "later", "d")), 11, "later"},
		{wrap(configurator.ErrUnhealthy, types.NewError(0, "ended", "")), 999, ""},
		{wrap(configurator.ErrNotChecked, sandbox.ErrNotNamespace), 11, ""},
		{wrap(configurator.ErrUnhealthy, fs.ErrNotExist), 999, ""},
		{wrap(configurator.ErrInvalidAllocation, fs.ErrNotExist), 8, ""},
		{wrap(configurator.ErrIncomplete, context.DeadlineExceeded), 11, ""},
		{wrap(configurator.ErrExhausted, fs.ErrExist), 11, ""},
		{wrap(configurator.ErrDifferent, fs.ErrExist), 999, ""},
		{wrap(portmap.ErrConflict, fs.ErrExist), 11, ""},
		{wrap(configurator.ErrInvalidAllocation, portmap.ErrConflict), 7, ""},
		{wrap(configurator.ErrPortTaken, fs.ErrExist), 11, ""},
		{wrap(configurator.ErrListener, fs.ErrExist), 11, ""},
		{wrap(configurator.ErrNoPort, fs.ErrExist), 11, ""},
		{wrap(configurator.ErrInUse, fs.ErrExist), 11, ""},
		{wrap(configurator.ErrAddressUnavailable, fs.ErrExist), 11, ""},
		{wrap(configurator.ErrIncomplete, fs.ErrExist), 11, ""},
	} {
		e := fault(test.err)
		require.Equal(t, test.code, e.Code, test.err)
		if test.msg == "" {
			test.msg = test.err.Error()
		}
		require.Equal(t, test.msg, e.Msg)
	}
}

func TestIDOf(t *testing.T) {
	long := strings.Repeat("c", 128)
	for _, test := range []struct{ container, ifName, want string }{
		{"c1", "eth0", "c1.eth0"},
		{"c.1", "eth0", "c.1.eth0"},
		{"c", "1.eth0", ""},
		{"c1", "eth@0", ""},
		{long, "eth0", ""},
		{long[:123], "eth0", long[:123] + ".eth0"},
	} {
		id := idOf(test.container, test.ifName)
		if test.want == "" {
			require.Regexp(t, "^c+1?-[0-9a-f]{32}$", id)
		} else {
			require.Equal(t, test.want, id)
		}
		require.LessOrEqual(t, len(id), names.MaxID)
	}
	require.NotEqual(t, idOf(long, "eth0"), idOf(long, "eth1"))
	hash := idOf("a.b", "c.d")
	require.Greater(t, len(hash)-strings.LastIndex(hash, "."), 16, "no interface has so long a name")
}
