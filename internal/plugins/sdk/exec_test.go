package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
)

// fake is a plugin with one configuration key.
type fake struct {
	Common
	Known string `json:"known"`

	called []string
	err    error
	defect bool
	valid  []types.GCAttachment
}

func (f *fake) Add(_ context.Context, c *CmdArgs) (*types100.Result, error) {
	f.called = append(f.called, "ADD "+c.ContainerID+" "+c.IfName+" "+c.Netns+" "+c.Args+" "+strings.Join(c.Path, "+"))
	return &types100.Result{CNIVersion: types100.ImplementedSpecVersion}, f.err
}

func (f *fake) note(what string) error {
	f.called = append(f.called, what)
	if f.defect {
		panic("no such index")
	}
	return f.err
}

func (f *fake) Check(context.Context, *CmdArgs) error  { return f.note("CHECK") }
func (f *fake) Del(context.Context, *CmdArgs) error    { return f.note("DEL") }
func (f *fake) Status(context.Context, *CmdArgs) error { return f.note("STATUS") }

func (f *fake) GC(_ context.Context, c *CmdArgs) error {
	f.valid = c.Valid
	return f.note("GC")
}

// binaries records which plugins run as binaries.
type binaries struct {
	version.PluginDecoder
	missing bool
	real    bool // search the file system
	ran     []string
	out     string
}

func (b *binaries) FindInPath(name string, paths []string) (string, error) {
	if b.real {
		return invoke.FindInPath(name, paths)
	}
	if b.missing || strings.HasSuffix(name, Aside) {
		return "", errors.New("not installed")
	}
	return "/bin/" + name, nil
}

func (b *binaries) ExecPlugin(_ context.Context, path string, _ []byte, env []string) ([]byte, error) {
	for _, kv := range env {
		if command, ok := strings.CutPrefix(kv, "CNI_COMMAND="); ok {
			path += " " + command
		}
	}
	b.ran = append(b.ran, path)
	return []byte(b.out), nil
}

func newExec(t *testing.T) (*Exec, *fake, *binaries) {
	t.Helper()
	f, b := &fake{}, &binaries{out: `{"cniVersion":"1.0.0"}`}
	return &Exec{
		Host: &Host{Log: hclog.NewNullLogger()}, Binary: b,
		Plugins: map[string]Factory{"fake": func(conf []byte) (Plugin, error) { return f, Decode(conf, f) }},
	}, f, b
}

var environment = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=web", "CNI_IFNAME=eth0", "CNI_NETNS=/n", "CNI_ARGS=A=1", "CNI_PATH=/a:/b", "OTHER=x"}

func TestExecRunsInside(t *testing.T) {
	e, f, b := newExec(t)
	out, err := e.Answer(t.Context(), "fake", []byte(`{"cniVersion":"0.3.1","name":"net","type":"fake"}`), environment)
	require.NoError(t, err)
	require.Equal(t, []string{"ADD web eth0 /n A=1 /a+/b"}, f.called)
	require.JSONEq(t, `{"cniVersion":"0.3.1","dns":{}}`, string(out), "the result has the version of the configuration")
	require.Empty(t, b.ran)
	for _, command := range []string{"CHECK", "DEL", "STATUS", "GC"} {
		f.called = nil
		out, err := e.Answer(t.Context(), "fake", []byte(`{"cniVersion":"1.1.0","cni.dev/valid-attachments":[]}`), []string{"CNI_COMMAND=" + command})
		require.NoError(t, err)
		require.Empty(t, out)
		require.Equal(t, []string{command}, f.called)
	}
	_, err = e.Answer(t.Context(), "fake", []byte(`{"cniVersion":"1.1.0"}`), []string{"CNI_COMMAND=JUMP"})
	require.ErrorContains(t, err, "JUMP")
}

// TestValidAttachments: a GC without a list of valid attachments runs nothing. null is an
// empty list, and both names of the key count.
func TestValidAttachments(t *testing.T) {
	run := func(keys string) (*fake, *binaries, error) {
		e, f, b := newExec(t)
		_, err := e.Answer(t.Context(), "fake", []byte(`{"cniVersion":"1.1.0"`+keys+`}`), []string{"CNI_COMMAND=GC", "CNI_PATH=/bin"})
		return f, b, err
	}
	a, b := types.GCAttachment{ContainerID: "a", IfName: "eth0"}, types.GCAttachment{ContainerID: "b", IfName: "eth1"}
	listA, listB := `[{"containerID":"a","ifname":"eth0"}]`, `[{"containerID":"b","ifname":"eth1"}]`
	for keys, want := range map[string][]types.GCAttachment{
		`,"cni.dev/valid-attachments":[]`:                                           nil,
		`,"cni.dev/valid-attachments":null`:                                         nil,
		`,"cni.dev/attachments":null`:                                               nil,
		`,"cni.dev/valid-attachments":` + listA:                                     {a},
		`,"cni.dev/attachments":` + listB:                                           {b},
		`,"cni.dev/attachments":` + listB + `,"cni.dev/valid-attachments":[]`:       {b},
		`,"cni.dev/attachments":` + listB + `,"cni.dev/valid-attachments":` + listA: {a, b},
	} {
		f, _, err := run(keys)
		require.NoError(t, err, keys)
		require.Equal(t, []string{"GC"}, f.called, keys)
		require.Equal(t, want, f.valid, keys)
	}
	for _, keys := range []string{"", `,"novel":1`} {
		f, binaries, err := run(keys)
		require.NoError(t, err, keys)
		require.Empty(t, f.called, keys)
		require.Empty(t, binaries.ran, keys)
	}
	for keys, want := range map[string]string{
		`,"cni.dev/valid-attachments":[{"containerID":"a","ifname":"e"},{"containerID":"b"}]`: "cni.dev/valid-attachments[1] is not an attachment; containerID or ifname is missing",
		`,"cni.dev/attachments":[null]`:                                "cni.dev/attachments[0] is not an attachment",
		`,"cni.dev/attachments":[{"containerID":"a","ifname":"../e"}]`: "cni.dev/attachments[0] is not an attachment; interface name contains",
		`,"cni.dev/valid-attachments":{}`:                              "cni.dev/valid-attachments cannot be read",
	} {
		f, _, err := run(keys)
		require.ErrorContains(t, err, want)
		var coded *types.Error
		require.ErrorAs(t, err, &coded)
		require.EqualValues(t, types.ErrInvalidNetworkConfig, coded.Code, keys)
		require.Empty(t, f.called, keys)
	}
}

func TestExecRunsOthersAsBinaries(t *testing.T) {
	e, f, b := newExec(t)
	_, err := e.Answer(t.Context(), "other", []byte(plain), environment)
	require.NoError(t, err)
	require.Equal(t, []string{"/bin/other ADD"}, b.ran)
	require.Empty(t, f.called)
}

// TestUnknownKey: an unknown key is ignored only if there is no alternative.
func TestUnknownKey(t *testing.T) {
	conf := []byte(`{"cniVersion":"1.0.0","type":"fake","known":"x","novel":1}`)
	e, f, b := newExec(t)
	var log strings.Builder
	e.Host.Log = hclog.New(&hclog.LoggerOptions{Output: &log})
	_, err := e.Answer(t.Context(), "fake", conf, environment)
	require.NoError(t, err)
	require.Equal(t, []string{"/bin/fake ADD"}, b.ran)
	require.Empty(t, f.called)
	require.Contains(t, log.String(), `novel`, "the log says why")

	// The allocation may come from a version that supported the key.
	for _, command := range []string{"DEL", "GC"} {
		b.ran, f.called = nil, nil
		conf := bytes.Replace(conf, []byte("{"), []byte(`{"cni.dev/valid-attachments":[],`), 1)
		_, err = e.Answer(t.Context(), "fake", conf, []string{"CNI_COMMAND=" + command, "CNI_PATH=/bin"})
		require.NoError(t, err)
		require.Equal(t, []string{command}, f.called)
		require.Equal(t, []string{"/bin/fake " + command}, b.ran)
	}
	b.missing, f.called = true, nil
	_, err = e.Answer(t.Context(), "fake", conf, environment)
	require.ErrorContains(t, err, `"novel"`)
	require.ErrorContains(t, err, "not installed")

	e.Lenient = true
	log.Reset()
	_, err = e.Answer(t.Context(), "fake", conf, environment)
	require.NoError(t, err)
	require.Len(t, f.called, 1)
	require.Equal(t, "x", f.Known, "the rest was read")
	require.Contains(t, log.String(), `novel`)

	// A value that is not implemented cannot be ignored.
	e.Plugins["fake"] = func([]byte) (Plugin, error) { return nil, &UnknownKeyError{Key: "vlan"} }
	_, err = e.Answer(t.Context(), "fake", conf, environment)
	var coded *types.Error
	require.ErrorAs(t, err, &coded)
	require.Equal(t, types.ErrInvalidNetworkConfig, coded.Code)
	require.ErrorContains(t, err, "vlan")
	b.missing, b.ran = false, nil
	_, err = e.Answer(t.Context(), "fake", conf, environment)
	require.NoError(t, err, "but the reference plugin does it where there is one")
	require.Equal(t, []string{"/bin/fake ADD"}, b.ran)
}

// TestFallBackIsAnother: the binary must not be a link to this program or its shim.
func TestFallBackIsAnother(t *testing.T) {
	for _, own := range []string{Program, Shim} {
		t.Run(own, func(t *testing.T) { fallBackIsAnother(t, own) })
	}
}

func fallBackIsAnother(t *testing.T, own string) {
	conf := []byte(`{"cniVersion":"1.0.0","type":"fake","novel":1}`)
	ours, theirs := t.TempDir(), t.TempDir()
	program := filepath.Join(t.TempDir(), own)
	require.NoError(t, os.WriteFile(program, nil, 0o755))
	require.NoError(t, os.Symlink(program, filepath.Join(ours, "fake")))
	env := []string{"CNI_COMMAND=ADD", "CNI_PATH=" + ours + ":" + theirs}
	e, _, b := newExec(t)
	b.real = true
	_, err := e.Answer(t.Context(), "fake", conf, env)
	require.ErrorContains(t, err, "is a link to "+own)

	require.NoError(t, os.WriteFile(filepath.Join(theirs, "fake"), nil, 0o755))
	_, err = e.Answer(t.Context(), "fake", conf, env)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(ours, "fake"+Aside), nil, 0o755))
	_, err = e.Answer(t.Context(), "fake", conf, env)
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(theirs, "fake") + " ADD", filepath.Join(ours, "fake"+Aside) + " ADD"}, b.ran)
}

// TestDelegate: an IPAM plugin gets the call's configuration and environment
// with its own command, in-process or as a binary.
func TestDelegate(t *testing.T) {
	e, f, b := newExec(t)
	conf := []byte(`{"cniVersion":"1.0.0","name":"net","type":"fake"}`)
	_, call := CmdArgsOf(environment, conf)
	call.exec = e
	_, err := call.Delegate(t.Context(), "DEL", "fake")
	require.NoError(t, err)
	require.Equal(t, []string{"DEL"}, f.called)

	b.out = `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}]}`
	result, err := call.Delegate(t.Context(), "ADD", "dhcp")
	require.NoError(t, err)
	require.Equal(t, "10.0.0.2/24", result.IPs[0].Address.String())
	require.Equal(t, []string{"/bin/dhcp ADD"}, b.ran)
}

// TestCheckedTellsFindings: a finding of CHECK has a code; a CHECK that could
// not run has none.
func TestCheckedTellsFindings(t *testing.T) {
	hasCode := func(err error) bool {
		var coded *types.Error
		return errors.As(err, &coded)
	}
	for _, c := range []struct {
		err     error
		finding bool
	}{
		{errors.New("no route"), true},
		{&fs.PathError{Op: "open", Path: "/n", Err: syscall.ENOENT}, true},
		{syscall.ENODEV, true},
		{syscall.EPERM, false},
		{syscall.ENOBUFS, false},
		{syscall.EINTR, false},
		{netlink.ErrDumpInterrupted, false},
		{&exec.Error{Name: "iptables", Err: exec.ErrNotFound}, false},
		{&exec.ExitError{ProcessState: &os.ProcessState{}}, false},
		{types.NewError(7, "bad", ""), true},
	} {
		err := checkError(t.Context(), c.err)
		require.ErrorIs(t, err, c.err)
		require.Equal(t, c.finding, hasCode(err), "%v", c.err)
	}
	require.NoError(t, checkError(t.Context(), nil))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.False(t, hasCode(checkError(ended, errors.New("interrupted"))))
}

func TestDecode(t *testing.T) {
	var f fake
	require.NoError(t, Decode([]byte(`{"known":"a","prevResult":{"x":1},"capabilities":{"mac":true}}`), &f))
	require.Equal(t, "a", f.Known)
	for name, conf := range map[string]string{
		"not JSON": `{`, "type": `{"known":1}`, "type beside an unknown key": `{"novel":1,"known":1}`, "two": `{}{}`, "list": `[]`, "empty": ``,
	} {
		err := Decode([]byte(conf), &fake{})
		var coded *types.Error
		require.ErrorAs(t, err, &coded, name)
		require.Equal(t, types.ErrDecodingFailure, coded.Code, name)
		require.False(t, IsUnknownKey(err), name)
	}
	err := Decode([]byte(`{"novel":1,"known":"b"}`), &f)
	require.True(t, IsUnknownKey(err))
	require.ErrorContains(t, err, `"novel"`)
	require.Equal(t, "b", f.Known)
}

func TestPrevious(t *testing.T) {
	c := Common{CNIVersion: "0.4.0", PrevResult: json.RawMessage(`{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.2/24"}],"dns":{}}`)}
	r, err := c.previous()
	require.NoError(t, err)
	require.Equal(t, "10.0.0.2/24", r.IPs[0].Address.String())
	for _, none := range []string{"", "null"} {
		r, err := (&Common{CNIVersion: "1.0.0", PrevResult: json.RawMessage(none)}).previous()
		require.NoError(t, err)
		require.Nil(t, r)
	}
	_, err = (&Common{CNIVersion: "1.0.0", PrevResult: json.RawMessage(`{"ips":[{"address":"x"}]}`)}).previous()
	require.ErrorContains(t, err, "prevResult")
}

// TestRunUnwinds: completed steps are undone in reverse order, and the first
// cause stays first.
func TestRunUnwinds(t *testing.T) {
	var did []string
	step := func(name string, doErr, undoErr error) Step {
		return Step{Name: name,
			Do: func(context.Context) error { did = append(did, name); return doErr },
			Undo: func(ctx context.Context) error {
				did = append(did, "undo "+name)
				return errors.Join(undoErr, ctx.Err())
			},
		}
	}
	first, second := errors.New("first"), errors.New("second")
	err := Run(t.Context(), step("a", nil, second), Step{Name: "b", Do: func(context.Context) error { return nil }}, step("c", nil, nil), step("d", first, nil), step("e", nil, nil))
	require.Equal(t, []string{"a", "c", "d", "undo c", "undo a"}, did)
	require.EqualError(t, err, "d: first\nundo a: second")
	require.ErrorIs(t, err, first)

	// When the context ends, the steps stop, but undoing does not.
	did = nil
	ctx, cancel := context.WithCancel(t.Context())
	err = Run(ctx, step("a", nil, nil), Step{Name: "b", Do: func(context.Context) error { cancel(); return nil }}, step("c", nil, nil))
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, []string{"a", "undo a"}, did)
	require.NoError(t, Run(t.Context(), step("a", nil, nil)))
}

// TestErrorsOfSlotsAndLimits: the error of a configuration that cannot be read names the plugin
// once, also in the operations that are no CNI commands.
func TestErrorsOfSlotsAndLimits(t *testing.T) {
	e, _, _ := newExec(t)
	wrong := args(`{"cniVersion":"1.0.0","known":7}`)
	_, wantedErr := e.Wanted(t.Context(), "fake", wrong)
	_, limitErr := e.Limit(t.Context(), "fake", wrong)
	for name, err := range map[string]error{
		"bind": e.Bind(t.Context(), "fake", wrong), "prepare": e.Prepare(t.Context(), "fake", wrong), "limit": limitErr,
		"can limit": e.CanLimit(t.Context(), "fake", wrong), "wanted": wantedErr,
	} {
		require.ErrorContains(t, err, `plugin "fake": network configuration cannot be read`, name)
		require.Equal(t, 1, strings.Count(err.Error(), `plugin "fake"`), "%s: %v", name, err)
		var coded *types.Error
		require.ErrorAs(t, err, &coded, name)
		require.EqualValues(t, types.ErrDecodingFailure, coded.Code, name)
	}
}
