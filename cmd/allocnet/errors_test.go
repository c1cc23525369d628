package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/server/api"
	"github.com/allocnet/allocnet/cmd/internal/server/apitest"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/object"
	"github.com/allocnet/allocnet/internal/state/lease"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// sentinels are the errors of the library for errors.Is.
var sentinels = map[string]error{
	"allocnet.ErrInvalidConfig": allocnet.ErrInvalidConfig, "allocnet.ErrInvalidAllocation": allocnet.ErrInvalidAllocation,
	"allocnet.ErrDifferent": allocnet.ErrDifferent, "allocnet.ErrNotFound": allocnet.ErrNotFound,
	"allocnet.ErrUnknownNetwork": allocnet.ErrUnknownNetwork, "allocnet.ErrPluginNotInstalled": allocnet.ErrPluginNotInstalled,
	"allocnet.ErrInvalidResult": allocnet.ErrInvalidResult, "allocnet.ErrNoAddress": allocnet.ErrNoAddress,
	"allocnet.ErrInUse": allocnet.ErrInUse, "allocnet.ErrExhausted": allocnet.ErrExhausted, "allocnet.ErrNoPort": allocnet.ErrNoPort, "allocnet.ErrAddressUnavailable": allocnet.ErrAddressUnavailable,
	"allocnet.ErrSubnetTaken": allocnet.ErrSubnetTaken, "allocnet.ErrBridgeFull": allocnet.ErrBridgeFull, "allocnet.ErrLimit": allocnet.ErrLimit,
	"allocnet.ErrPortTaken": allocnet.ErrPortTaken, "allocnet.ErrSetUp": allocnet.ErrSetUp,
	"allocnet.ErrUnhealthy": allocnet.ErrUnhealthy, "allocnet.ErrNotChecked": allocnet.ErrNotChecked,
	"allocnet.ErrIncomplete": allocnet.ErrIncomplete, "allocnet.ErrExists": allocnet.ErrExists, "allocnet.ErrListener": allocnet.ErrListener,
	"allocnet.ErrUnserved": allocnet.ErrUnserved, "allocnet.ErrUnprivileged": allocnet.ErrUnprivileged,
	"allocnet.ErrRevision": allocnet.ErrRevision, "allocnet.ErrCannotUpdate": allocnet.ErrCannotUpdate,
	"portmap.ErrConflict": portmap.ErrConflict,
	"sandbox.ErrExist":    sandbox.ErrExist, "sandbox.ErrNotExist": sandbox.ErrNotExist, "sandbox.ErrInvalidName": sandbox.ErrInvalidName,
	"sandbox.ErrNotNamespace": sandbox.ErrNotNamespace, "sandbox.ErrHostNamespace": sandbox.ErrHostNamespace,
	"allocnet.ErrStateDir": allocnet.ErrStateDir,
	"allocnet.ErrNewer":    allocnet.ErrNewer,
	"context.Canceled":     context.Canceled,
	"DeadlineExceeded":     context.DeadlineExceeded,
	"fs.ErrPermission":     fs.ErrPermission,
	"syscall.ENOSPC":       syscall.ENOSPC,
	"syscall.EPERM":        syscall.EPERM,
	"syscall.ENOTDIR":      syscall.ENOTDIR,
}

// samples are errors of all types of the library for errors.As.
var samples = map[string]error{
	"allocnet.LeftoverError": &allocnet.LeftoverError{ID: "web", Leftovers: []allocnet.Leftover{
		{Kind: "lease", Object: "192.0.2.1"}, {Kind: "link", Object: "veth1"},
	}},
	"allocnet.NetworkError": &allocnet.NetworkError{File: "/etc/cni/net.d/x.conflist", Err: fmt.Errorf("read: %w", fs.ErrPermission)},
	"allocnet.NetnsError":   &allocnet.NetnsError{Netns: "/run/netns/web", ID: "web", OtherID: "db"},
	"allocnet.AllocationError": &allocnet.AllocationError{ID: "web", Err: fmt.Errorf("%w: %w",
		allocnet.ErrUnhealthy, &types.Error{Code: 100, Msg: "rules are gone"})},
	"allocnet.ListenerError": &allocnet.ListenerError{
		ID: "web", Mapping: portmap.Mapping{HostPort: 80, ContainerPort: 8080, Protocol: "tcp"}, Address: "0.0.0.0:80", UID: 33, PID: 17, Process: "nginx",
	},
	"allocnet.UnservedError": &allocnet.UnservedError{ID: "web", Capabilities: []string{"mac", "portMappings"}, Networks: []string{"net"}},
	"portmap.PortError":      &portmap.PortError{Index: 1, Label: "http", Field: "to", Value: "70000", Reason: "must be less"},
	"portmap.ConflictError": &portmap.ConflictError{
		Mapping: portmap.Mapping{HostPort: 80, ContainerPort: 8080, Protocol: "tcp", Label: "http"},
		Other:   portmap.Mapping{HostPort: 80, Protocol: "tcp", HostIP: "127.0.0.1"}, ID: "web", OtherID: "db",
	},
	"allocnet.StateDirError": &allocnet.StateDirError{Dir: "/run/allocnet", Err: fmt.Errorf("write /run/allocnet/x: %w", syscall.ENOSPC)},
	"allocnet.RecordError":   &allocnet.RecordError{ID: "web", File: "/run/allocnet/allocs/web.json", Err: errors.New("unexpected end of JSON input")},
	"allocnet.PortTakenError": &allocnet.PortTakenError{
		Mapping: portmap.Mapping{HostIP: "127.0.0.1", HostPort: 80, ContainerPort: 8080, Protocol: "tcp"}, To: netip.MustParseAddrPort("10.0.0.2:8080"),
		Network: "net", ID: "db", Interface: "eth0", Instance: "i",
	},
	"allocnet.SubnetError":   &allocnet.SubnetError{Network: "web", File: "/etc/cni/net.d/10-web.conflist", Subnet: netip.MustParsePrefix("10.0.0.0/24"), Taken: "address 10.0.0.7/24 of eth0"},
	"allocnet.RevisionError": &allocnet.RevisionError{ID: "web", Wanted: "a-1", Current: "a-2"},
	"types.Error":            &types.Error{Code: 11, Msg: "later", Details: "the moon"},
}

// failures returns errors as operations return them, by their subject.
func failures() map[string]error {
	all := map[string]error{}
	for name, err := range sentinels {
		all[name] = fmt.Errorf("act %q: %w: why", "object", err)
	}
	for name, err := range samples {
		all[name] = fmt.Errorf("outer: %w", err)
	}
	newer := &allocnet.RecordError{ID: "web", File: "/run/allocnet/allocs/web.json", Err: fmt.Errorf("format 9: %w (this one reads up to 1)", allocnet.ErrNewer)}
	portTaken := *samples["allocnet.PortTakenError"].(*allocnet.PortTakenError)
	portTaken.Network, portTaken.ID, portTaken.Interface, portTaken.Instance = "", "#0123", "", ""
	one, other := portmap.Mapping{HostPort: 80, Protocol: "tcp"}, portmap.Mapping{HostPort: 81, Protocol: "tcp"}
	for name, err := range map[string]error{
		"newer record": newer,
		"incomplete": fmt.Errorf("allocation %q: %w: %w", "web", configurator.ErrIncomplete, errors.Join(
			&types.Error{Code: 7, Msg: "no"}, samples["allocnet.LeftoverError"], context.DeadlineExceeded)),
		"not checked":      fmt.Errorf("allocation %q: %w: %w", "web", configurator.ErrNotChecked, configurator.ErrPluginNotInstalled),
		"port, no owner":   fmt.Errorf("%w: %w", &types.Error{Code: 999, Msg: "x"}, &portTaken),
		"plugin as text":   errors.New("plugin says: host port is taken"),
		"conflict inside":  fmt.Errorf("%w: %w", configurator.ErrInvalidAllocation, errors.Join(&portmap.ConflictError{Mapping: one, Other: one}, &portmap.ConflictError{Mapping: other, Other: other})),
		"no netns":         fmt.Errorf("%w: netns: %w", configurator.ErrInvalidAllocation, &fs.PathError{Op: "open", Path: "/run/netns/web", Err: syscall.ENOENT}),
		"broken, no netns": fmt.Errorf("allocation %q: %w: %w", "web", configurator.ErrUnhealthy, fmt.Errorf("%w: netns: %w", configurator.ErrInvalidAllocation, fs.ErrNotExist)),
		"duplicate lease":  fmt.Errorf("network %q: %w", "net", lease.ErrDuplicate),
		"no iptables":      errors.New(`exec: "iptables": executable file not found in $PATH`),
		"foreign route":    fmt.Errorf("allocation %q: %w: %w", "web", configurator.ErrUnhealthy, fmt.Errorf("the host has no route: %w", rtnl.ErrForeignRoute)),
		"small MTU":        fmt.Errorf("network %q: %w", "net", object.ErrSmallMTU),
		"old bridge":       errors.New(`"cni0" already has an IP address different from 10.0.0.1/16`),
		"several": errors.Join(errors.New("list records"), samples["allocnet.AllocationError"], errors.Join(
			&configurator.AllocationError{ID: "db", Err: newer}, &configurator.AllocationError{ID: "c", Err: context.Canceled})),
	} {
		all[name] = err
	}
	return all
}

// failing is a service whose operations all return the same error.
type failing struct {
	apitest.Memory
	err error
}

func (f *failing) Setup(context.Context, configurator.Allocation) (*configurator.Status, error) {
	return nil, f.err
}
func (f *failing) Check(context.Context, configurator.Allocation) error      { return f.err }
func (f *failing) Teardown(context.Context, configurator.Allocation) error   { return f.err }
func (f *failing) Get(context.Context, string) (*configurator.Record, error) { return nil, f.err }
func (f *failing) List(context.Context) ([]configurator.Record, error)       { return nil, f.err }
func (f *failing) Ready(context.Context) error                               { return f.err }
func (f *failing) GC(ctx context.Context, live []string) (*configurator.GCReport, error) {
	return f.GCScope(ctx, configurator.Scope{Live: live})
}

func (f *failing) GCScope(context.Context, configurator.Scope) (*configurator.GCReport, error) {
	return &configurator.GCReport{Removed: []string{"a"}, Kept: []string{"web"}, Records: []configurator.Record{{ID: "a", Scope: "s"}}}, f.err
}

func (f *failing) PlanGC(ctx context.Context, s configurator.Scope) (*configurator.GCReport, error) {
	return f.GCScope(ctx, s)
}

func (f *failing) CheckOnly(context.Context, configurator.Allocation) error { return f.err }
func (f *failing) TeardownGone(context.Context, string) (bool, error)       { return true, f.err }
func (f *failing) Audit(context.Context, configurator.Allocation) ([]configurator.Leftover, error) {
	return []configurator.Leftover{{Kind: "lease", Object: "x"}}, f.err
}
func (f *failing) Force(context.Context, configurator.Allocation) ([]configurator.Leftover, error) {
	return nil, f.err
}
func (f *failing) ReadyFor(context.Context, configurator.Allocation) error { return f.err }

func (f *failing) RecoverScope(context.Context, configurator.Scope) (*configurator.RecoverReport, error) {
	return &configurator.RecoverReport{Removed: []string{"a"}, Records: []configurator.Record{{ID: "a", Netns: "/run/netns/a"}}}, f.err
}

func (f *failing) RepairScope(context.Context, configurator.Scope) (*configurator.RepairReport, error) {
	return &configurator.RepairReport{Healthy: []string{}, Repaired: []string{}, Broken: []string{"c", "db", "web"}}, f.err
}

// operations are all operations that can fail, with their results beside the
// error.
var operations = map[string]func(context.Context, allocnet.Service) (any, error){
	"setup": func(ctx context.Context, s allocnet.Service) (any, error) {
		return s.Setup(ctx, configurator.Allocation{ID: "web"})
	},
	"check": func(ctx context.Context, s allocnet.Service) (any, error) {
		return nil, s.Check(ctx, configurator.Allocation{ID: "web"})
	},
	"teardown": func(ctx context.Context, s allocnet.Service) (any, error) {
		return nil, s.Teardown(ctx, configurator.Allocation{ID: "web"})
	},
	"get": func(ctx context.Context, s allocnet.Service) (any, error) { return s.Get(ctx, "web") },
	"list": func(ctx context.Context, s allocnet.Service) (any, error) {
		records, err := s.List(ctx)
		return len(records), err
	},
	"check only": func(ctx context.Context, s allocnet.Service) (any, error) {
		return nil, s.CheckOnly(ctx, configurator.Allocation{ID: "web"})
	},
	"teardown gone": func(ctx context.Context, s allocnet.Service) (any, error) { return s.TeardownGone(ctx, "web") },
	"audit": func(ctx context.Context, s allocnet.Service) (any, error) {
		return s.Audit(ctx, configurator.Allocation{ID: "web"})
	},
	"force": func(ctx context.Context, s allocnet.Service) (any, error) {
		return s.Force(ctx, configurator.Allocation{ID: "web"})
	},
	"ready for": func(ctx context.Context, s allocnet.Service) (any, error) {
		return nil, s.ReadyFor(ctx, configurator.Allocation{})
	},
	"gc": func(ctx context.Context, s allocnet.Service) (any, error) {
		return s.GCScope(ctx, configurator.Scope{})
	},
	"ready": func(ctx context.Context, s allocnet.Service) (any, error) { return nil, s.Ready(ctx) },
	"plan":  func(ctx context.Context, s allocnet.Service) (any, error) { return s.PlanGC(ctx, configurator.Scope{}) },
	"repair": func(ctx context.Context, s allocnet.Service) (any, error) {
		report, err := s.RepairScope(ctx, configurator.Scope{})
		return newRepairReport(report, err)
	},
	"recover": func(ctx context.Context, s allocnet.Service) (any, error) {
		return s.RecoverScope(ctx, configurator.Scope{})
	},
}

// TestErrorsAreTheSameBothWays: errors through the daemon have the same text,
// sentinels, fields, kind, hint and exit code as those of the library.
func TestErrorsAreTheSameBothWays(t *testing.T) {
	own := &failing{}
	socket, _ := apitest.Serve(t, api.Options{
		Service: func() allocnet.Service { return own },
		Ready:   func(context.Context) []api.Check { return []api.Check{{Name: "all", Err: own.err}} },
	})
	daemon := client.New(client.Config{Socket: socket})
	for name, err := range failures() {
		own.err = err
		for operation, do := range operations {
			t.Run(name+"/"+operation, func(t *testing.T) {
				wantReport, want := do(t.Context(), own)
				gotReport, got := do(t.Context(), daemon)
				require.Equal(t, wantReport, gotReport)
				requireSameError(t, want, got)
			})
		}
	}
}

// requireSameError compares everything that a program or a user can see of two
// errors.
func requireSameError(t *testing.T, want, got error) {
	t.Helper()
	require.EqualError(t, got, want.Error())
	require.Equal(t, message(want), message(got))
	for name, sentinel := range sentinels {
		require.Equal(t, errors.Is(want, sentinel), errors.Is(got, sentinel), name)
	}
	for name, sample := range samples {
		require.Equal(t, fields(want, sample), fields(got, sample), name)
	}
	if !notPermitted(want) { // the daemon and its client have different privileges
		require.Equal(t, newErrorReport(want, ""), newErrorReport(got, ""))
	}
	require.Equal(t, kindOf(want).word, kindOf(got).word)
	require.Equal(t, exitCode(want), exitCode(got))
}

// fields returns the first error of a type as JSON, with the text of the
// wrapped error. It returns "" if there is none.
func fields(err, sample error) string {
	found := reflect.New(reflect.TypeOf(sample))
	if !errors.As(err, found.Interface()) {
		return ""
	}
	said := found.Elem().Interface().(error).Error()
	members := map[string]any{}
	value := reflect.Indirect(found.Elem())
	for i := range value.NumField() {
		if cause, is := value.Field(i).Interface().(error); is {
			members[value.Type().Field(i).Name] = cause.Error()
		} else {
			members[value.Type().Field(i).Name] = value.Field(i).Interface()
		}
	}
	data, jsonErr := json.Marshal(members)
	if jsonErr != nil {
		return jsonErr.Error()
	}
	return said + " " + string(data)
}

// TestEveryErrorHasARow checks that each exported error of the library is in
// the tables above.
func TestEveryErrorHasARow(t *testing.T) {
	for dir, prefix := range map[string]string{
		".": "allocnet", "portmap": "portmap", "sandbox": "sandbox", "cleanup": "cleanup",
		"configurator": "allocnet", // has aliases of its errors
	} {
		for _, name := range exportedErrors(t, filepath.Join("../..", dir)) {
			name = prefix + "." + name
			require.True(t, sentinels[name] != nil || samples[name] != nil, "%s has no row in sentinels or samples: "+
				"add it there, and to package wire, and see to its hint, kind and exit code", name)
		}
	}
}

// exportedErrors are the names of a package's variables Err... and types ...Error.
func exportedErrors(t *testing.T, dir string) (found []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") }) {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, declaration := range parsed.Decls {
			general, ok := declaration.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range general.Specs {
				switch s := spec.(type) {
				case *ast.ValueSpec:
					for _, name := range s.Names {
						if general.Tok == token.VAR && strings.HasPrefix(name.Name, "Err") {
							found = append(found, name.Name)
						}
					}
				case *ast.TypeSpec:
					if s.Name.IsExported() && strings.HasSuffix(s.Name.Name, "Error") {
						found = append(found, s.Name.Name)
					}
				}
			}
		}
	}
	return found
}

// TestErrorsAreBounded: the length of errors is bounded, whatever names and
// however many causes they contain.
func TestErrorsAreBounded(t *testing.T) {
	w := newWorkspace(t)
	name := strings.Repeat("n", 64<<10)
	got := w.run("gc", "--none", "--search", name)
	require.NotEqual(t, exitOK, got.code)
	require.Contains(t, got.errOut, "bytes ...]")
	require.Less(t, len(got.errOut), 4096)

	var causes []error
	for i := range 516 {
		causes = append(causes, fmt.Errorf("allocation a%d: stuck", i))
	}
	lines := strings.Split(message(errors.Join(causes...)), "\n")
	require.Len(t, lines, 65)
	require.Equal(t, "... and 452 more lines", lines[64])
}

// TestNextStepOfValues: if a value of a valid command line is refused, the message shows the form
// of this command, and the hint the next step.
func TestNextStepOfValues(t *testing.T) {
	w := newWorkspace(t)
	w.sandbox("web")
	w.run("setup", "web", "--network", "allocnet").ok(t)
	for _, c := range []struct {
		args        []string
		error, hint string
	}{
		{[]string{"publish", "web", "0-5:80/tcp"}, `^parse port "0-5:80/tcp": host port "0-5" must not be a range: 0 stands for one free host port; an example is http=`, "usage: allocnet publish"},
		{[]string{"publish", "web", "abc"}, `^parse port "abc": host port "abc" must be 1 to 65535, or 0 for a free host port; an example is http=`, "usage: allocnet publish"},
		{[]string{"setup", "db", "--port", ":80"}, `host port "" must be 1 to 65535, or 0 for a free host port; an example is http=`, "usage: allocnet setup"},
		{[]string{"unpublish", "web", "abc"}, `^port to unpublish: host port "abc" must be 1 to 65535; an example is 8443/tcp$`, "usage: allocnet unpublish"},
		{[]string{"publish", "web", "80", "--unpublish", "80/xtp"}, `^port to unpublish: protocol "xtp" must be tcp, udp or sctp; an example is 8443/tcp$`, "usage: allocnet publish"},
		{[]string{"attach", "web", "allocnet"}, "attached to it already$", "there is nothing to do: `allocnet inspect web` shows"},
		{[]string{"teardown", ""}, "^argument 1 of allocnet teardown is empty: pass an ID or a name$", "usage: allocnet teardown ID"},
		{[]string{"history", ""}, "^argument 1 of allocnet history is empty", "usage: allocnet history"},
		{[]string{"attach", "web", ""}, "^argument 2 of allocnet attach is empty", "usage: allocnet attach"},
		{[]string{"set", "web", "--label", "=x"}, `label "": the key must be`, "write the label as KEY=VALUE, as in tier=front"},
		{[]string{"setup", "db", "--create", "--label", "a/=x"}, `label "a/": the key must be`, "write the label as KEY=VALUE, as in tier=front"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			report := w.run(append(c.args, "--json")...).failure(t, exitUsage)
			require.Equal(t, "invalid", report.Kind)
			require.Regexp(t, c.error, report.Error)
			require.Contains(t, report.Hint, c.hint)
		})
	}
	w.run("teardown", "web").ok(t)
}

// TestNoStateDir: a misspelt --state-dir is not taken for a host without allocations.
func TestNoStateDir(t *testing.T) {
	dir := t.TempDir()
	require.Equal(t, "nothing is set up: the directory "+dir+"/no of --state-dir does not exist\n", runWith("", "ls", "--state-dir", dir+"/no").errOut)
	require.Equal(t, "nothing is set up in "+dir+"\n", runWith("", "ls", "--state-dir", dir).errOut)
	require.NoDirExists(t, dir+"/no")
	got := runWith("", "ls", "--json", "--state-dir", dir+"/no")
	require.JSONEq(t, "[]", got.ok(t))
	require.JSONEq(t, `{"warning": "the directory `+dir+`/no of --state-dir does not exist"}`, got.errOut)
}
