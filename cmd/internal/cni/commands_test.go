package cni

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// parse parses a result and checks its version.
func parse(t *testing.T, version string, data json.RawMessage) *types100.Result {
	t.Helper()
	result, err := create.Create(version, data)
	require.NoError(t, err)
	require.Equal(t, version, result.Version())
	newest, err := types100.NewResultFromResult(result)
	require.NoError(t, err)
	return newest
}

// TestLife runs the life of an attachment, in every version and with both
// engines.
func TestLife(t *testing.T) {
	for _, engine := range []configurator.Engine{configurator.EngineNative, configurator.EngineExec} {
		for i, version := range Versions {
			t.Run(string(engine)+" "+version, func(t *testing.T) {
				if engine == configurator.EngineExec {
					skip.InTurn(t, i, len(Versions))
				}
				w := newWorkspace(t, engine)
				conf := ours(version, `"delegate":"br"`)
				add := w.env("ADD", "c1")
				first := w.serve(add, conf)
				result := parse(t, version, first)
				require.Equal(t, "10.66.0.2/24", result.IPs[0].Address.String())
				require.Equal(t, "eth0", result.Interfaces[*result.IPs[0].Interface].Name)
				require.JSONEq(t, string(first), string(w.serve(add, conf)), "once more")
				require.Equal(t, []string{"c1.eth0"}, w.records())
				if version >= "0.4.0" {
					w.serve(as(add, "CHECK"), conf)
				} else {
					require.Equal(t, uint(1), w.refuse(as(add, "CHECK"), conf).Code)
				}
				for range 2 {
					require.Nil(t, w.serve(as(add, "DEL"), conf))
				}
				require.Empty(t, w.records())
				if version >= "0.4.0" {
					e := w.refuse(as(add, "CHECK"), conf)
					require.Equal(t, uint(3), e.Code)
					require.Contains(t, e.Msg, "unknown container")
				}
			})
		}
	}
}

// TestFormOfResults: before 1.0.0, the addresses of a result contain their
// family, as in the results of plugins.
func TestFormOfResults(t *testing.T) {
	for _, engine := range []configurator.Engine{configurator.EngineNative, configurator.EngineExec} {
		for i, version := range Versions {
			t.Run(string(engine)+" "+version, func(t *testing.T) {
				if engine == configurator.EngineExec {
					skip.InTurn(t, i, len(Versions))
				}
				w := newWorkspace(t, engine)
				w.network("same", strconv.Quote(version), w.bridge("brcni2", "10.67.0.0/24"))
				for j, delegates := range []string{`["same"]`, `["br"]`, `["same","br"]`} {
					if engine == configurator.EngineNative && !skip.Has(t, i+j, 3) {
						continue
					}
					add := w.env("ADD", "c1")
					conf := ours(version, `"delegates":`+delegates)
					var result struct {
						CNIVersion string           `json:"cniVersion"`
						IPs        []map[string]any `json:"ips"`
					}
					require.NoError(t, json.Unmarshal(w.serve(add, conf), &result))
					require.Equal(t, version, result.CNIVersion)
					require.Len(t, result.IPs, strings.Count(delegates, ",")+1)
					for _, ip := range result.IPs {
						require.Equal(t, version < "1.0.0", ip["version"] == "4", "%s: %v", delegates, ip)
					}
					w.serve(as(add, "DEL"), conf)
				}
			})
		}
	}
}

// TestVersions uses unsupported versions, and commands that are newer than the
// configuration.
func TestVersions(t *testing.T) {
	w := newWorkspace(t, configurator.EngineNative)
	for version, commands := range map[string]string{"": "ADD DEL CHECK", "0.2.0": "ADD DEL", "1.2.0": "ADD DEL STATUS GC", "1.0.0": "GC STATUS"} {
		for command := range strings.FieldsSeq(commands) {
			e := w.refuse(w.env(command, "c1"), ours(version, ""))
			require.Equal(t, uint(1), e.Code, command)
			require.Contains(t, Versions, e.CNIVersion)
		}
	}
	result := w.Serve(t.Context(), Request{Env: Env{Command: "VERSION"}, Config: json.RawMessage(`{"cniVersion":"0.4.0"}`)})
	require.JSONEq(t, `{"cniVersion":"0.4.0","supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}`, string(result.Result))
}

// TestDelegates: several networks produce one result.
func TestDelegates(t *testing.T) {
	w := newWorkspace(t, configurator.EngineNative)
	w.network("second", `"1.1.0"`, w.bridge("brcni2", "10.67.0.0/24"))
	conf := ours("1.1.0", `"delegates":["br","second"]`)
	add := w.env("ADD", "c1")
	add.IfName = "eth1"
	result := parse(t, "1.1.0", w.serve(add, conf))
	var got []string
	for _, ip := range result.IPs {
		i := result.Interfaces[*ip.Interface]
		require.Equal(t, add.Netns, i.Sandbox)
		got = append(got, i.Name+" "+ip.Address.String())
	}
	require.Equal(t, []string{"eth1 10.66.0.2/24", "eth0 10.67.0.2/24"}, got)
	require.Len(t, result.Interfaces, 6)
	require.Len(t, result.Routes, 2)
	w.serve(as(add, "CHECK"), conf)
	w.serve(as(add, "DEL"), conf)
}

// TestDefaultNetworks: the default networks are those of the host.
func TestDefaultNetworks(t *testing.T) {
	w := newWorkspace(t, configurator.EngineNative)
	add := w.env("ADD", "c1")
	require.Equal(t, "10.66.0.2/24", parse(t, "1.0.0", w.serve(add, ours("1.0.0", ""))).IPs[0].Address.String())
	w.serve(as(add, "DEL"), ours("1.0.0", ""))
}

// TestChainOfItsOwn: the chain gets all values that the runtime passes.
func TestChainOfItsOwn(t *testing.T) {
	for _, engine := range []configurator.Engine{configurator.EngineNative, configurator.EngineExec} {
		t.Run(string(engine), func(t *testing.T) {
			w := newWorkspace(t, engine)
			add := w.env("ADD", "c1")
			add.Args = "IgnoreUnknown=1;K8S_POD_NAME=web;EMPTY="
			conf := ours("1.0.0", `"plugins":[`+w.fake("one", adds)+`,`+w.fake("two", nil)+`],
				"args":{"cni":{"mac":"02:00:00:00:00:01"}},
				"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"TCP"},{"hostPort":0,"containerPort":1,"protocol":"tcp"}],
					"aliases":{"net":["web"]},"mac":null,"empty":{}}`)
			w.serve(add, conf)
			w.serve(as(add, "DEL"), conf)
			calls, err := fakeplugin.Calls(w.log)
			require.NoError(t, err)
			require.Len(t, calls, 6, "CHECK runs right after ADD")
			for _, call := range calls {
				require.Equal(t, []string{"c1", "eth0"}, []string{call.ID, call.IfName})
				var conf struct {
					Name          string
					Args          json.RawMessage
					RuntimeConfig json.RawMessage
				}
				require.NoError(t, json.Unmarshal(call.Stdin, &conf))
				require.Equal(t, "net", conf.Name)
				require.JSONEq(t, `{"cni":{"mac":"02:00:00:00:00:01"}}`, string(conf.Args))
				require.JSONEq(t, `{"aliases":{"net":["web"]},"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`, string(conf.RuntimeConfig))
				require.ElementsMatch(t, []string{"IgnoreUnknown=1", "K8S_POD_NAME=web", "EMPTY="}, strings.Split(call.Args, ";"))
			}
		})
	}
}

// TestUnserved: a capability that the runtime passes because allocnet's
// configuration declares it must be declared by a plugin of the delegate as
// well.
func TestUnserved(t *testing.T) {
	w := newWorkspace(t, configurator.EngineNative)
	ports := `"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`
	first := w.env("ADD", "c1")
	inline := `"plugins":[` + w.bridge("brcni", "10.66.0.0/24") + `]`
	for _, delegate := range []string{`"delegate":"br",`, inline + `,`, ""} {
		e := w.refuse(first, ours("1.0.0", delegate+ports))
		require.Equal(t, uint(7), e.Code)
		require.Contains(t, e.Msg, "declares portMappings")
		require.Empty(t, w.records())
		w.serve(as(first, "DEL"), ours("1.0.0", delegate+ports))
	}
	for _, empty := range []string{`{"portMappings":[]}`, `{"portMappings":null,"dns":{},"aliases":[]}`, `{"bandwidth":{"ingressRate":0}}`} {
		w.serve(first, ours("1.0.0", `"runtimeConfig":`+empty))
		w.serve(as(first, "DEL"), ours("1.0.0", ""))
	}
	conf := ours("1.0.0", `"plugins":[`+w.fake("one", adds)+`],`+ports)
	w.serve(first, conf)
	w.serve(as(first, "DEL"), conf)
}

// TestSuccessor: the ADD of a container with a host port of another one succeeds, in every order in which the
// two go; records name the one that has the port.
func TestSuccessor(t *testing.T) {
	w := newWorkspace(t, configurator.EngineNative)
	conf := ours("1.0.0", `"plugins":[`+w.fake("one", adds)+`],"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`)
	first, second := w.env("ADD", "c1"), w.env("ADD", "c2")
	waiting := func(id string) []configurator.PortWait {
		r, err := w.c.Get(t.Context(), id)
		require.NoError(t, err)
		return r.Waiting
	}
	for _, goes := range [][2]Env{{first, second}, {second, first}} {
		w.serve(first, conf)
		w.serve(second, conf)
		w.serve(second, conf)
		w.serve(as(second, "CHECK"), conf)
		require.Empty(t, waiting("c1.eth0"))
		require.Len(t, waiting("c2.eth0"), 1)
		require.Equal(t, `host port 8080/tcp leads to allocation "c1.eth0", which had it first`, waiting("c2.eth0")[0].String())
		_, err := w.c.Setup(t.Context(), configurator.Allocation{ID: "library", Netns: w.env("ADD", "c3").Netns, Ports: []portmap.Port{{Value: 8080, To: 80}},
			Conflists: []json.RawMessage{json.RawMessage(`{"cniVersion":"1.0.0","name":"other","plugins":[` + w.fake("one", adds) + `]}`)}})
		require.ErrorIs(t, err, portmap.ErrConflict)
		w.serve(as(goes[0], "DEL"), conf)
		if goes[0] == first {
			require.Empty(t, waiting("c2.eth0"))
		}
		w.serve(as(goes[1], "DEL"), conf)
	}
}

// TestListenerOnAHostPort: the host's setting applies to the plugin.
func TestListenerOnAHostPort(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:7600")
	require.NoError(t, err)
	defer l.Close()
	w := newWorkspace(t, configurator.EngineNative)
	conf := ours("1.0.0", `"plugins":[`+w.fake("one", adds)+`],"runtimeConfig":{"portMappings":[{"hostPort":7600,"containerPort":80,"protocol":"tcp"}]}`)
	add := w.env("ADD", "c1")
	w.cfg.Listeners = configurator.ListenerRefuse
	w.vendor("")
	require.Regexp(t, `^publish host port 7600/tcp of allocation "c1.eth0": process \d+ .* listens on 127\.0\.0\.1:7600; `, w.refuse(add, conf).Msg)
	require.Empty(t, w.records())
	w.serve(as(add, "DEL"), conf)
	w.cfg.Listeners = configurator.ListenerWarn
	w.vendor("")
	w.serve(add, conf)
	w.serve(as(add, "DEL"), conf)
}

// TestSpelling accepts the formats of other programs: go-cni sends structs
// without tags, and a flat list of ranges. Additions of newer specifications
// are ignored.
func TestSpelling(t *testing.T) {
	w := newWorkspace(t, configurator.EngineNative)
	add := w.env("ADD", "c1")
	plugin := strings.Replace(w.fake("one", adds), `"aliases"`, `"ipRanges":true,"bandwidth":true,"dns":true,"aliases"`, 1)
	given := func(runtimeConfig string) string {
		return ours("1.0.0", `"plugins":[`+plugin+`],"cni.dev/new":{"a":1},"runtimeConfig":`+runtimeConfig)
	}
	conf := given(`{"portMappings":[{"HostPort":8080,"ContainerPort":80,"Protocol":"TCP","HostIP":""}],
		"bandwidth":{"IngressRate":1000,"IngressBurst":2000,"EgressRate":0,"EgressBurst":0},
		"dns":{"Servers":["10.0.0.53"],"Searches":null,"Options":null},
		"ipRanges":[{"Subnet":"10.5.0.0/24","RangeStart":"10.5.0.9","RangeEnd":"","Gateway":""},{"Subnet":"fd00:5::/64","RangeStart":"","RangeEnd":"","Gateway":""}]}`)
	w.serve(add, conf)
	w.serve(as(add, "DEL"), conf)
	calls, err := fakeplugin.Calls(w.log)
	require.NoError(t, err)
	var got struct{ RuntimeConfig json.RawMessage }
	require.NoError(t, json.Unmarshal(calls[0].Stdin, &got))
	require.JSONEq(t, `{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}],
		"bandwidth":{"ingressRate":1000,"ingressBurst":2000},"dns":{"servers":["10.0.0.53"]},
		"ipRanges":[[{"subnet":"10.5.0.0/24","rangeStart":"10.5.0.9"}],[{"subnet":"fd00:5::/64"}]]}`, string(got.RuntimeConfig))
	for text, wrong := range map[string]string{
		"there twice":                   given(`{"portMappings":[{"HostPort":1,"hostport":2,"containerPort":1,"protocol":"tcp"}]}`),
		"not a known field":             given(`{"bandwidth":{"Ingress":1}}`),
		"ipRanges: [0]":                 given(`{"ipRanges":[{"Subnets":"10.5.0.0/24"}]}`),
		`["cni.dev/Valid-Attachments"]`: ours("1.0.0", `"cni.dev/Valid-Attachments":[]`),
		"plugins[0].type":               ours("1.0.0", `"cni.dev/x":{"b":1},"plugins":[{"type":"one","type":"one"}]`),
	} {
		e := w.refuse(add, wrong)
		require.Equal(t, uint(7), e.Code)
		require.Contains(t, e.Msg, text)
	}
}

// TestChained: the chain continues from the result of the previous plugin,
// whatever its version.
func TestChained(t *testing.T) {
	for _, engine := range []configurator.Engine{configurator.EngineNative, configurator.EngineExec} {
		for _, version := range []string{"0.3.1", "1.1.0"} {
			t.Run(string(engine)+" "+version, func(t *testing.T) {
				w := newWorkspace(t, engine)
				add := w.env("ADD", "c1")
				bridge := strings.Replace(ours(version, `"delegate":"br"`), `"net"`, `"first"`, 1)
				add.IfName = "eth9"
				previous := w.serve(add, bridge)
				chained := add
				chained.IfName = "eth0"
				conf := ours(version, `"plugins":[`+w.fake("one", nil)+`],"prevResult":`+string(previous))
				require.JSONEq(t, string(previous), string(w.serve(chained, conf)))
				w.serve(as(chained, "DEL"), conf)
				w.serve(as(add, "DEL"), bridge)
			})
		}
	}
}

// TestCheckOfPrevious: the prevResult of a CHECK, if there is one, is that of the attachment.
func TestCheckOfPrevious(t *testing.T) {
	w := newWorkspace(t, configurator.EngineNative)
	add, other := w.env("ADD", "c1"), w.env("ADD", "c2")
	with := func(previous string) string { return ours("1.1.0", `"delegate":"br","prevResult":`+previous) }
	result := string(w.serve(add, ours("1.1.0", `"delegate":"br"`)))
	foreign := string(w.serve(other, ours("1.1.0", `"delegate":"br"`)))
	w.serve(as(add, "CHECK"), with(result))
	more := strings.Replace(result, `"ips":[`, `"ips":[{"address":"192.0.2.9/24"},`, 1) // of a plugin that follows
	require.NotEqual(t, result, more)
	w.serve(as(add, "CHECK"), with(more))
	for previous, text := range map[string]string{
		foreign: "it is not the result of this attachment", `{"cniVersion":"1.1.0"}`: "it is not the result of this attachment", `[7]`: "prevResult",
	} {
		e := w.refuse(as(add, "CHECK"), with(previous))
		require.Equal(t, uint(7), e.Code)
		require.Contains(t, e.Msg+e.Details, text)
	}
	w.serve(as(add, "DEL"), ours("1.1.0", `"delegate":"br"`))
	w.serve(as(other, "DEL"), ours("1.1.0", `"delegate":"br"`))
}

// TestDelNeedsTheRecordOnly: at the time of DEL, everything else may be gone or
// changed.
func TestDelNeedsTheRecordOnly(t *testing.T) {
	for name, change := range map[string]func(w *workspace, e *Env, conf *string){
		"the same":                  func(*workspace, *Env, *string) {},
		"no namespace is named":     func(_ *workspace, e *Env, _ *string) { e.Netns = "" },
		"the namespace is gone":     func(_ *workspace, e *Env, _ *string) { require.NoError(t, destroy(e.Netns)) },
		"a path that is none":       func(_ *workspace, e *Env, _ *string) { e.Netns = "x" },
		"the network is gone":       func(w *workspace, _ *Env, _ *string) { require.NoError(t, os.RemoveAll(w.conf)) },
		"another delegate":          func(_ *workspace, _ *Env, c *string) { *c = ours("1.1.0", `"delegate":"other"`) },
		"an invalid configuration":  func(_ *workspace, _ *Env, c *string) { *c = ours("1.1.0", `"delegate":[1],"secret":"`+secret+`"`) },
		"a broken chain":            func(_ *workspace, _ *Env, c *string) { *c = ours("1.1.0", `"plugins":[{"type":"allocnet"}]`) },
		"broken CNI_ARGS":           func(_ *workspace, e *Env, _ *string) { e.Args = "x" },
		"not ready":                 func(w *workspace, _ *Env, _ *string) { w.notReady = errors.New("wait") },
		"a broken result before":    func(_ *workspace, _ *Env, c *string) { *c = ours("1.1.0", `"delegate":"br","prevResult":[7]`) },
		"the record cannot be read": func(w *workspace, _ *Env, _ *string) { w.breakRecord("c1.eth0") },
		"the record is gone": func(w *workspace, _ *Env, _ *string) {
			require.NoError(t, os.RemoveAll(filepath.Join(w.dir, "state")))
		},
		"the record is gone, and the namespace": func(w *workspace, e *Env, _ *string) {
			require.NoError(t, os.RemoveAll(filepath.Join(w.dir, "state")))
			require.NoError(t, destroy(e.Netns))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorkspace(t, configurator.EngineNative)
			conf := ours("1.1.0", `"delegate":"br"`)
			add := w.env("ADD", "c1")
			w.serve(add, conf)
			del := as(add, "DEL")
			change(w, &del, &conf)
			w.serve(del, conf)
			w.serve(del, conf)
			require.Empty(t, w.records())
		})
	}
}

// TestDelOfAnother: DEL does not change another attachment.
func TestDelOfAnother(t *testing.T) {
	w := newWorkspace(t, configurator.EngineNative)
	add := w.env("ADD", "c1")
	conf := ours("1.1.0", `"delegate":"br"`)
	other := strings.Replace(conf, `"net"`, `"other"`, 1)
	w.serve(add, conf)
	e := w.refuse(add, other)
	require.Equal(t, uint(999), e.Code)
	require.Contains(t, e.Msg, `"c1.eth0" is an attachment to network "net"`)
	w.refuse(as(add, "CHECK"), other)
	del := as(add, "DEL")
	del.Netns = w.env("", "elsewhere").Netns
	e = w.refuse(del, other)
	require.Equal(t, uint(999), e.Code)
	require.Contains(t, e.Msg, `"c1.eth0" is an attachment to network "net"`)
	del.Netns = "/run/netns/gone"
	w.refuse(del, other)
	w.serve(as(add, "CHECK"), conf)
	w.serve(as(add, "DEL"), conf)

	mine := configurator.Allocation{ID: "c1.eth0", Netns: add.Netns, Networks: []string{"br"}}
	_, err := w.c.Setup(t.Context(), mine)
	require.NoError(t, err)
	require.Contains(t, w.refuse(add, conf).Msg, "not made through CNI")
	for _, netns := range []string{add.Netns, ""} {
		del := as(add, "DEL")
		del.Netns = netns
		require.Contains(t, w.refuse(del, conf).Msg, "not made through CNI")
	}
	require.NoError(t, w.c.Check(t.Context(), mine))
	require.NoError(t, w.c.Teardown(t.Context(), mine))
}

// TestDelOfAnotherAtTheSamePath: the path, and maybe the inode, belongs to a
// new namespace.
func TestDelOfAnotherAtTheSamePath(t *testing.T) {
	w := newWorkspace(t, configurator.EngineNative)
	conf := ours("1.1.0", `"delegate":"br"`)
	add := w.env("ADD", "c1")
	w.serve(add, conf)
	require.NoError(t, destroy(add.Netns))
	del := w.env("DEL", "c1")
	require.Equal(t, add.Netns, del.Netns)
	require.Contains(t, w.refuse(del, strings.Replace(conf, `"net"`, `"other"`, 1)).Msg, `"c1.eth0" is an attachment to network "net"`)
	require.Equal(t, []string{"c1.eth0"}, w.records())
	w.serve(del, conf)
	require.Empty(t, w.records())
}

// TestDelUnderAnotherName: DEL tears down the attachment if it is the same one
// in spite of the network's name.
func TestDelUnderAnotherName(t *testing.T) {
	for name, change := range map[string]func(w *workspace, e *Env){
		"the same namespace":       func(*workspace, *Env) {},
		"by another path":          func(w *workspace, e *Env) { e.Netns = w.link(e.Netns) },
		"no namespace is named":    func(_ *workspace, e *Env) { e.Netns = "" },
		"the namespace is gone":    func(_ *workspace, e *Env) { require.NoError(t, destroy(e.Netns)) },
		"and was elsewhere, maybe": func(_ *workspace, e *Env) { require.NoError(t, destroy(e.Netns)); e.Netns = "/run/netns/gone" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorkspace(t, configurator.EngineNative)
			add := w.env("ADD", "c1")
			conf := ours("1.1.0", `"delegate":"br"`)
			w.serve(add, conf)
			del := as(add, "DEL")
			change(w, &del)
			for range 2 {
				w.serve(del, strings.Replace(conf, `"net"`, `"other"`, 1))
			}
			require.Empty(t, w.records())
		})
	}
}

// link returns another path of a file.
func (w *workspace) link(path string) string {
	link := filepath.Join(w.dir, "link")
	require.NoError(w.t, os.Symlink(path, link))
	return link
}

// TestScope: GC finds attachments under another name of the network.
func TestScope(t *testing.T) {
	w := newWorkspace(t, configurator.EngineNative)
	conf := ours("1.1.0", `"delegate":"br","scope":"s"`)
	renamed := strings.Replace(conf, `"net"`, `"other"`, 1)
	a, b := w.env("ADD", "a"), w.env("ADD", "b")
	w.serve(a, conf)
	w.serve(b, conf)
	w.serve(w.env("ADD", "c"), ours("1.1.0", `"delegate":"br"`))
	w.serve(as(a, "CHECK"), renamed)
	w.serve(as(a, "DEL"), renamed)
	require.Contains(t, w.refuse(b, ours("1.1.0", `"delegate":"br"`)).Msg, `an attachment of scope "s"`)
	require.Equal(t, []string{"b.eth0", "c.eth0"}, w.records())
	w.serve(Env{Command: "GC"}, strings.Replace(renamed, "{", `{"cni.dev/valid-attachments":[],`, 1))
	require.Equal(t, []string{"c.eth0"}, w.records())
	w.serve(w.env("DEL", "c"), ours("1.1.0", `"delegate":"br"`))
}

func TestGC(t *testing.T) {
	w := newWorkspace(t, configurator.EngineNative)
	conf := ours("1.1.0", `"delegate":"br"`)
	for _, id := range []string{"a", "b", "c"} {
		w.serve(w.env("ADD", id), conf)
	}
	other := strings.Replace(conf, `"net"`, `"other"`, 1)
	w.serve(w.env("ADD", "d"), other)
	gc := func(valid string) string {
		return ours("1.1.0", `"delegate":"br","cni.dev/attachments":[],"cni.dev/valid-attachments":`+valid)
	}
	isA, others := `{"containerID":"a","ifname":"eth0"}`, `[{"containerID":"b","ifname":"eth1"},{"containerID":"gone","ifname":"eth0"}]`
	w.serve(Env{Command: "GC"}, ours("1.1.0", `"delegate":"br","cni.dev/attachments":[`+isA+`],"cni.dev/valid-attachments":`+others))
	require.Equal(t, []string{"a.eth0", "d.eth0"}, w.records())
	w.serve(Env{Command: "GC"}, ours("1.1.0", `"delegate":"br","cni.dev/attachments":[`+isA+`]`))
	require.Equal(t, []string{"a.eth0", "d.eth0"}, w.records())
	for text, conf := range map[string]string{
		"cni.dev/valid-attachments[0] is not an attachment": gc(`[{"containerID":"a"}]`),
		"containerId": gc(`[{"containerId":"a","ifname":"eth0"}]`), "must be an array": gc(`{}`),
	} {
		e := w.refuse(Env{Command: "GC"}, conf)
		require.Equal(t, uint(7), e.Code)
		require.Contains(t, e.Msg, text)
	}
	w.serve(Env{Command: "GC"}, conf) // without a list of attachments
	require.Equal(t, []string{"a.eth0", "d.eth0"}, w.records())
	w.serve(Env{Command: "GC"}, gc(`null`))
	require.Equal(t, []string{"d.eth0"}, w.records())
	w.serve(w.env("DEL", "d"), other)
}

func TestStatus(t *testing.T) {
	w := newWorkspace(t, configurator.EngineNative)
	status := Env{Command: "STATUS"}
	conf := ours("1.1.0", `"delegate":"br"`)
	w.serve(status, conf)
	w.ready = types.NewError(51, "limited", "some")
	require.Equal(t, &Error{CNIVersion: "1.1.0", Code: 51, Msg: "limited", Details: "some"}, w.refuse(status, conf))
	w.ready = errors.New("no directory")
	require.Equal(t, &Error{CNIVersion: "1.1.0", Code: 50, Msg: "the network is not ready", Details: "no directory"}, w.refuse(status, conf))
	w.notReady = errors.New("no file")
	require.Equal(t, &Error{CNIVersion: "1.1.0", Code: 50, Msg: "the network is not ready", Details: "no file"}, w.refuse(status, conf))
	add := w.env("ADD", "c1")
	require.Equal(t, &Error{CNIVersion: "1.1.0", Code: 11, Msg: "the network is not ready: no file"}, w.refuse(add, conf))
	require.Empty(t, w.records())
	w.serve(as(add, "DEL"), conf)
}

// leaving is the context of a runtime that disconnects when its network is
// ready.
type leaving struct {
	context.Context
	w *workspace
}

func (l leaving) Err() error {
	if records, err := l.w.c.List(context.Background()); err == nil && len(records) > 0 && records[0].Phase == configurator.PhaseReady {
		return context.Canceled
	}
	return l.Context.Err()
}

// TestNobodyTakesTheResult: the runtime disconnects at the last moment. An
// allocation that existed before stays.
func TestNobodyTakesTheResult(t *testing.T) {
	w := newWorkspace(t, configurator.EngineNative)
	conf := ours("1.0.0", `"delegate":"br"`)
	add := w.env("ADD", "c1")
	for range 2 {
		response := w.Serve(leaving{t.Context(), w}, Request{Env: add, Config: json.RawMessage(conf), Conflists: true})
		require.Equal(t, uint(11), response.Error.Code)
		require.Empty(t, w.records())
	}
	w.serve(add, conf)
	w.Serve(leaving{t.Context(), w}, Request{Env: add, Config: json.RawMessage(conf), Conflists: true})
	require.Equal(t, []string{"c1.eth0"}, w.records())
	w.serve(as(add, "CHECK"), conf)
	w.serve(as(add, "DEL"), conf)
}

// TestPolicyAndLabels: a runtime passes the policy and the labels of a container, to a network by
// name and to a chain. The plugin serves labels itself; a policy needs the plugin policy.
func TestPolicyAndLabels(t *testing.T) {
	const enforced = `{"type":"policy","capabilities":{"policy":true}}`
	w := newWorkspace(t, configurator.EngineNative)
	w.network("enforced", `"1.0.0"`, w.bridge("brcni2", "10.67.0.0/24"), enforced)
	given := func(delegate, runtimeConfig string) string {
		return ours("1.1.0", delegate+`,"runtimeConfig":`+runtimeConfig)
	}
	const request = `{"policy":{"presets":["isolated"]},"labels":{"app":"web"}}`
	for i, delegate := range []string{`"delegate":"enforced"`, `"plugins":[` + w.bridge("brcni2", "10.67.0.0/24") + `,` + enforced + `]`} {
		add, conf := w.env("ADD", "c"+strconv.Itoa(i)), given(delegate, request)
		for range 2 {
			w.serve(add, conf)
		}
		r, err := w.c.Get(t.Context(), add.ContainerID+".eth0")
		require.NoError(t, err)
		require.Equal(t, &policy.Policy{Presets: []policy.Preset{policy.Isolated}}, r.Policy)
		require.Equal(t, map[string]string{"app": "web"}, r.Labels)
		w.serve(as(add, "CHECK"), conf)
		for _, other := range []string{`{"policy":{"presets":["isolated"]}}`, `{"labels":{"app":"web"}}`} {
			require.Contains(t, w.refuse(add, given(delegate, other)).Msg, "different", other)
		}
		w.serve(as(add, "DEL"), conf)
	}
	add := w.env("ADD", "c9")
	w.serve(add, given(`"delegate":"br"`, `{"labels":{"app":"web"}}`))
	w.serve(as(add, "DEL"), ours("1.1.0", `"delegate":"br"`))
	for runtimeConfig, text := range map[string]string{
		`{"policy":{"preset":["isolated"]}}`:                                   `runtimeConfig: policy: parse policy: unknown field "preset"`,
		`{"policy":{"policy":{}}}`:                                             `runtimeConfig: policy: parse policy: unknown field "policy"`,
		`{"policy":{"presets":["islated"]}}`:                                   `runtimeConfig: policy: check policy: presets[0]: "islated" is unknown`,
		`{"policy":{"egress":{"rules":[{"peers":[{"cidr":"10.0.0.0/33"}]}]}}}`: `runtimeConfig: policy: parse policy: egress.rules[0].peers[0].cidr`,
		`{"policy":null}`:                                                      `runtimeConfig: policy: is null`,
		`{"policy":[]}`:                                                        `runtimeConfig: policy: parse policy`,
		`{"labels":{"a":1}}`:                                                   `runtimeConfig: labels: a`,
		`{"labels":{"a":"b","a":"c"}}`:                                         `runtimeConfig.labels.a`,
	} {
		e := w.refuse(add, given(`"delegate":"enforced"`, runtimeConfig))
		require.Equal(t, uint(7), e.Code, runtimeConfig)
		require.Contains(t, e.Msg, text)
	}
	e := w.refuse(add, given(`"delegate":"br"`, `{"policy":{"presets":["isolated"]}}`))
	require.Equal(t, uint(7), e.Code)
	require.Contains(t, e.Msg, "declares policy")
	require.Empty(t, w.records())
}
