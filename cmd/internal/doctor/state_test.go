package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cmd/internal/readiness"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/lease"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

func TestConfigurations(t *testing.T) {
	r := newRig(t)
	r.network("20-broken", `{"cniVersion": "1.0.0"`)
	r.finds("configuration-skipped", []string{"20-broken.conflist"})
	r.network("20-broken", r.bridge("web", "other0", "10.78.0.0/24"))
	r.finds("configuration-shadowed", []string{"20-broken.conflist"})
	r.network("20-broken", r.bridge("small", "other0", "10.78.0.0/31"))
	r.finds("configuration-invalid", []string{`network "small"`, "10.78.0.0/31"}, "plugin-missing")
	r.network("20-broken", r.chain("small", "other0", "10.78.0.0/24", `, {"type": "bandwidth", "ingressRate": 8000}`))
	r.finds("configuration-invalid", []string{`network "small": plugin "bandwidth"`, "a rate needs a burst"})
	r.network("20-broken", `{"cniVersion": "1.0.0", "name": "small", "plugins": [{"type": "tuning", "mtu": 1400}]}`)
	r.finds("configuration-invalid", []string{`network "small": plugin "tuning"`, "no prevResult"})
	// Another plugin replaces the text before it runs host-local.
	r.plugin("calico", `echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}'`)
	r.plugin("host-local", `echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}'`)
	r.network("20-broken", `{"cniVersion": "1.0.0", "name": "small", "plugins": [{"type": "calico", "ipam": {"type": "host-local", "subnet": "usePodCidr"}}]}`)
	r.healthy()
	r.sh("rm -r " + r.path("conf"))
	r.healthy() // only the embedded network exists
}

func TestSettings(t *testing.T) {
	r := newRig(t)
	r.sh("mkdir -p /etc/allocnet; echo 'networks = [\"web\", \"nowhere\"]' >/etc/allocnet/allocnetd.hcl")
	r.finds("network-missing", []string{`names network "nowhere"`})
	r.sh("echo 'netwerks = 7' >/etc/allocnet/allocnetd.hcl")
	r.finds("settings", []string{"netwerks"})
	r.sh("echo 'networks = [\"web\"]' >/etc/allocnet/allocnetd.hcl")
	r.healthy()
}

func TestPlugins(t *testing.T) {
	r := newRig(t)
	r.network("20-odd", r.chain("odd", "odd0", "10.78.0.0/24", `, {"type": "odd"}, {"type": "firewall"}`))
	r.finds("plugin-missing", []string{`network "odd" needs plugin "odd"`})
	r.plugin("odd", "exit 3")
	r.finds("plugin-broken", []string{"/bin/odd", "does not answer VERSION"})
	r.plugin("odd", `echo '{"cniVersion": "0.4.0", "supportedVersions": ["0.3.1", "0.4.0"]}'`)
	r.finds("plugin-version", []string{"has cniVersion 1.0.0", "supports 0.3.1, 0.4.0"})
	r.plugin("odd", `echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}'`)
	r.healthy()

	r.sh("chmod o+w " + r.path("bin/odd"))
	r.repairs(r.finds("plugin-dir-writable", []string{"plugin " + r.path("bin/odd")}))
	r.sh("chmod o+w " + r.path("bin"))
	r.repairs(r.finds("plugin-dir-writable", []string{"plugin directory " + r.path("bin")}))
	r.sh("ln -s /nowhere/bridge " + r.path("bin/bridge"))
	r.finds("plugin-broken", []string{"is a link to /nowhere/bridge"})
	r.sh("rm -r " + r.path("bin"))
	r.finds("plugin-dir", []string{r.path("bin") + " does not exist"}, "plugin-missing")
}

func kindsOf(findings []Finding) (ids []string) {
	for _, f := range findings {
		ids = append(ids, f.ID)
	}
	return ids
}

func TestRecords(t *testing.T) {
	r := newRig(t)
	r.sh("mkdir -p -m 700 " + r.path("state/allocs"))
	file := r.path("state/allocs/broken.json")
	require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	unreadable := r.finds("record-unreadable", []string{"broken.json"})
	require.Contains(t, unreadable.Repair, " && allocnet teardown broken --netns PATH")
	require.Equal(t, []string{"record-unreadable"}, kindsOf(r.host().ExamineQuickly(t.Context()).Findings))
	r.sh("mkdir -p " + r.path("leases/web") + "; cd " + r.path("leases/web") + `; printf 'broken\r\neth0' >10.77.0.20; touch -d '1 hour ago' 10.77.0.20`)
	r.finds("record-unreadable", []string{"broken.json"}, "not-checked") // the lease may be that of the record
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Remove(r.path("leases/web/10.77.0.20")))

	a := r.setup("web")
	r.sh("umount /run/netns/web; rm /run/netns/web")
	f := r.finds("netns-gone", []string{"/run/netns/web of allocation \"web\" is gone"})
	require.Equal(t, "allocnet teardown --gone web", f.Repair, "it keeps an allocation that was set up again")
	require.NoError(t, r.conf.Teardown(t.Context(), a))
	r.healthy()

	r.setup("half")
	store := record.Open(r.path("state"))
	half, err := store.Get("half")
	require.NoError(t, err)
	half.Phase = record.Adding
	require.NoError(t, store.Put(half))
	unlock, err := store.Lock(t.Context(), "half")
	require.NoError(t, err)
	unlock = sync.OnceFunc(unlock)
	t.Cleanup(unlock) // otherwise the cleanup would wait for it
	r.healthy()       // an operation works on it
	unlock()
	r.finds("interrupted", []string{`allocation "half" is in phase "adding"`})
	_, err = r.conf.Recover(t.Context())
	require.NoError(t, err)
	f = r.finds("netns-orphan", []string{"/run/netns/half was made for an allocation that no longer exists"})
	require.Equal(t, "allocnet cleanup --orphans", f.Repair)
	_, err = r.conf.DestroyOrphans(t.Context())
	require.NoError(t, err)
	r.healthy()
}

func TestLeftovers(t *testing.T) {
	r := newRig(t)
	r.setup("web")
	require.NoError(t, os.Remove(r.path("state/allocs/web.json")))
	f := r.finds("leftover", []string{`allocation "web" has no record`, "link"}, "netns-orphan")
	require.Contains(t, f.Repair, "allocnet cleanup --force web")
	require.False(t, f.Safe, "another program may have made it")
	_, err := r.conf.Force(t.Context(), configurator.Allocation{ID: "web", Networks: []string{"web"}})
	require.NoError(t, err)
	r.finds("netns-orphan", []string{"/run/netns/web was made for an allocation that no longer exists"})
}

// TestLeftoversWithoutAudit: each allocation of which leftovers cannot be looked for is named.
func TestLeftoversWithoutAudit(t *testing.T) {
	r := newRig(t)
	ids := []string{"db", "web"}
	for _, id := range ids {
		r.setup(id, func(a *configurator.Allocation) { a.Ports = nil })
	}
	r.sh("rm " + r.path("state/allocs/*.json") + "; cd " + r.path("leases") + "; mv web away; touch web")
	_, err := r.host().leftovers(t.Context())
	for _, id := range ids {
		require.ErrorContains(t, err, `audit of "`+id+`"`)
	}
	r.sh("cd " + r.path("leases") + "; rm web; mv away web")
	for _, id := range ids {
		_, err := r.conf.Force(t.Context(), configurator.Allocation{ID: id, Networks: []string{"web"}})
		require.NoError(t, err)
	}
}

func TestLeases(t *testing.T) {
	r := newRig(t)
	r.all = true
	store, err := lease.Open(r.path("state/leases"), "allocnet")
	require.NoError(t, err)
	set := lease.RangeSet{{First: netip.MustParseAddr("10.202.0.9"), Last: netip.MustParseAddr("10.202.0.9")}}
	_, err = store.Reserve(t.Context(), lease.Owner{ID: "gone", IfName: "eth0"}, []lease.Request{{Set: set}})
	require.NoError(t, err)
	r.setup("web")
	r.finds("lease-without-owner", []string{`allocation "gone" has no record`, "10.202.0.9"})
	r.fixes("lease-without-owner")
	require.NoFileExists(t, r.path("state/leases/allocnet/10.202.0.9"))
	require.FileExists(t, r.path("leases/web/10.77.0.2"), "that of an allocation stays")

	require.NoError(t, os.WriteFile(r.path("leases/web/10.77.0.7"), nil, 0o600))
	f := r.finds("lease-without-owner", []string{"the lease of 10.77.0.7", "is empty"})
	r.fixes("lease-without-owner")
	require.NoFileExists(t, r.path("leases/web/10.77.0.7"))
	require.NoError(t, os.WriteFile(r.path("leases/web/10.77.0.7"), []byte("web\r\neth1"), 0o600))
	r.sh(f.Repair)
	require.FileExists(t, r.path("leases/web/10.77.0.7"), "an allocation has got the address")
	require.NoError(t, os.Truncate(r.path("leases/web/10.77.0.7"), 0))
	r.repairs(f)
}

// TestForeignLeases: the directory of a network may have leases of other runtimes. One is
// without an owner if no network namespace has its address.
func TestForeignLeases(t *testing.T) {
	r := newRig(t)
	r.all = true
	r.sh("mkdir -p " + r.path("leases/web") + "; cd " + r.path("leases/web") + `; for i in 10.77.0.20 10.77.0.21 10.77.0.22; do
		printf 'other\r\neth0' >$i; touch -d '1 hour ago' $i; done; touch 10.77.0.22
		ip netns add named; ip -n named link set lo up; ip -n named addr add 10.77.0.20/32 dev lo`)
	f := r.finds("lease-without-owner", []string{`10.77.0.21 is leased to container "other" in network "web"`})
	require.False(t, f.Safe, "another runtime may have the container")
	count := func(ids []string, records ...configurator.Record) int {
		counts, err := LeasesWithoutOwner(t.Context(), r.host().Networks, Records{
			IDs:  func() ([]string, error) { return ids, nil },
			List: func(context.Context) ([]configurator.Record, error) { return records, nil },
		}, "/run/netns")
		require.NoError(t, err)
		require.Zero(t, counts["allocnet"])
		return counts["web"]
	}
	require.Equal(t, 1, count(nil))
	require.Zero(t, count([]string{"other"}))
	require.Zero(t, count([]string{"slot"}, configurator.Record{ID: "slot", ContainerID: "other"}))
	require.NotContains(t, describe(r.examine().Findings), "10.77.0.20 is leased", "a namespace has the address")
	require.NotContains(t, describe(r.examine().Findings), "10.77.0.22 is leased", "its network may be about to be set up")
	command, _, _ := strings.Cut(f.Repair, " (")
	r.sh("touch " + r.path("leases/web/10.77.0.21") + "; " + command)
	require.FileExists(t, r.path("leases/web/10.77.0.21"), "it was written again")
	r.sh("touch -d '1 hour ago' " + r.path("leases/web/10.77.0.21") + "; " + command)
	require.NoFileExists(t, r.path("leases/web/10.77.0.21"))
	require.FileExists(t, r.path("leases/web/10.77.0.20"), "the container has it")
	r.sh(`printf 'other\r\neth0' >` + r.path("leases/web/10.77.0.21") + "; touch -d '1 hour ago' " + r.path("leases/web/10.77.0.21"))
	r.sh("mkdir -p /var/lib/cni/results; echo '{}' >/var/lib/cni/results/web-other-eth0")
	r.undo("rm -r /var/lib/cni/results")
	r.healthy() // a runtime has a result
}

// TestLeasesWithoutOwnerReadLittle: if every lease has an owner, no record is read. If one
// has none, and the records cannot be read, it is not counted.
func TestLeasesWithoutOwnerReadLittle(t *testing.T) {
	r := newRig(t)
	r.setup("web")
	failure := errors.New("no")
	records := Records{
		IDs:  func() ([]string, error) { return []string{"web"}, nil },
		List: func(context.Context) ([]configurator.Record, error) { return nil, failure },
	}
	r.sh("touch -d '1 hour ago' " + r.path("leases/web/10.77.0.2"))
	counts, err := LeasesWithoutOwner(t.Context(), r.host().Networks, records, "/run/netns")
	require.NoError(t, err)
	require.Equal(t, map[string]int{"web": 0, "allocnet": 0}, counts)
	r.sh(`printf 'other\r\neth0' >` + r.path("leases/web/10.77.0.9") + "; touch -d '1 hour ago' " + r.path("leases/web/10.77.0.9"))
	_, err = LeasesWithoutOwner(t.Context(), r.host().Networks, records, "/run/netns")
	require.ErrorIs(t, err, failure)
	records.IDs = func() ([]string, error) { return nil, failure }
	_, err = LeasesWithoutOwner(t.Context(), r.host().Networks, records, "/run/netns")
	require.ErrorIs(t, err, failure)
	r.sh("rm " + r.path("leases/web/10.77.0.9"))
}

func TestDrift(t *testing.T) {
	r := newRig(t)
	r.setup("web")
	r.sh("nft flush map ip allocnet host_ports")
	f := r.finds("drift", []string{`allocation "web"`})
	require.Contains(t, f.Repair, "allocnet repair")
	_, err := r.conf.Repair(t.Context())
	require.NoError(t, err)
	r.healthy()

	r.setup("routed", func(a *configurator.Allocation) { a.Networks, a.Ports = []string{"allocnet"}, nil })
	r.sh("ip route replace blackhole 10.202.0.2")
	f = r.finds("drift", []string{`allocation "routed"`, "ip route del blackhole 10.202.0.2"})
	require.Equal(t, "run the command that the error names, then: allocnet repair", f.Repair)
	r.sh("ip route del blackhole 10.202.0.2")
	_, err = r.conf.Repair(t.Context())
	require.NoError(t, err)
	r.healthy()
}

// TestStaleNamespaces: only a file that allocnet made has a safe repair.
func TestStaleNamespaces(t *testing.T) {
	r := newRig(t)
	r.sh("mkdir -p /run/netns; touch /run/netns/new; touch -d '1 hour ago' /run/netns/old; ip netns add foreign")
	f := r.finds("netns-stale", []string{"/run/netns/old is an empty file", "allocnet has no record of it"})
	require.False(t, f.Safe, "a namespace may be mounted on it in another mount namespace")
	r.repairs(f)
	require.FileExists(t, "/run/netns/new", "a program may be about to mount a namespace there")
	require.NoError(t, sandbox.Validate("/run/netns/foreign"))

	r.sh("touch -d '1 hour ago' /run/netns/old; mount --bind /run/netns/old /run/netns/old")
	f = r.finds("netns-stale", []string{"/run/netns/old is a mount point, and not of a network namespace"})
	require.False(t, f.Safe)
	command, _, _ := strings.Cut(f.Repair, " (")
	r.sh("umount /run/netns/old; rm /run/netns/old; ip netns add old; " + command)
	require.NoError(t, sandbox.Validate("/run/netns/old"), "a program has mounted a namespace there since")
	r.sh("ip netns del old; touch -d '1 hour ago' /run/netns/old; mount --bind /run/netns/old /run/netns/old")
	r.repairs(f)

	r.sh("touch -d '1 hour ago' /run/netns/old; chmod 444 /run/netns/old")
	require.NoError(t, record.Open(r.path("state")).AddSandbox("old", record.Sandbox{Path: "/run/netns/old", Boot: "this"}))
	r.finds("netns-stale", []string{`/run/netns/old is the empty file on which allocnet mounts the network namespace of allocation "old"`})
	r.sh("mount --bind /run/netns/old /run/netns/old")
	require.False(t, r.finds("netns-stale", []string{"is a mount point"}).Safe)
	r.sh("umount /run/netns/old; chmod 600 /run/netns/old")
	require.False(t, r.finds("netns-stale", []string{"allocnet has no record of it"}).Safe, "another program made the file anew")
	r.sh("chmod 444 /run/netns/old")
	r.fixes("netns-stale")
	require.NoFileExists(t, "/run/netns/old")
}

// TestLimits lowers the part from which a limit counts as soon reached, because the limits
// themselves are those of the whole machine.
func TestLimits(t *testing.T) {
	r := newRig(t)
	r.setup("web")
	r.sh(`ip link set web0 up; ip neigh replace 10.77.0.99 lladdr 02:00:00:00:00:01 dev web0; bash -c 'echo x >/dev/udp/127.0.0.1/9'`)
	h := r.host()
	h.Full = 1e-18
	found := map[string]string{}
	for _, f := range h.Examine(t.Context()).Findings {
		found[f.ID] += f.What + "\n"
	}
	require.Regexp(t, `^[1-9]\d* of \d+ connections are tracked`, found["conntrack-full"])
	require.Regexp(t, `(?m)^the table arp_cache has [1-9]\d* of \d+ neighbours$`, found["neighbour-full"])
	require.Regexp(t, `^bridge web0 has 1 of 1023 ports`, found["bridge-full"])
	require.Regexp(t, `^\d+ of \d+ files are open`, found["files-full"])
	require.Regexp(t, `/run/netns has 1 network namespaces of at most \d+`, found["namespaces-full"])
	require.Contains(t, found["addresses-full"], `network "web" has 252 ipv4 addresses left, of 253`)
}

func TestAddresses(t *testing.T) {
	r := newRig(t)
	r.all = true
	r.network("10-web", r.bridge("web", "web0", "10.77.0.0/29"))
	store, err := lease.Open(r.path("leases"), "web")
	require.NoError(t, err)
	r.healthy()
	r.setup("web")
	for _, addr := range []string{"10.77.0.3", "10.77.0.4", "10.77.0.5"} {
		set := lease.RangeSet{{First: netip.MustParseAddr(addr), Last: netip.MustParseAddr(addr)}}
		_, err = store.Reserve(t.Context(), lease.Owner{ID: "x" + addr, IfName: "eth0"}, []lease.Request{{Set: set}})
		require.NoError(t, err)
	}
	r.finds("addresses-full", []string{`network "web" has 1 ipv4 addresses left, of 5`}, "lease-without-owner")
	last := netip.MustParseAddr("10.77.0.6")
	_, err = store.Reserve(t.Context(), lease.Owner{ID: "last", IfName: "eth0"}, []lease.Request{{Set: lease.RangeSet{{First: last, Last: last}}}})
	require.NoError(t, err)
	f := r.finds("addresses-exhausted", []string{`network "web" has no ipv4 address left, of 5`}, "lease-without-owner")
	require.Equal(t, Error, f.Severity)
	require.Contains(t, kindsOf(r.host().ExamineQuickly(t.Context()).Findings), "addresses-exhausted")
}

// TestReadiness: what keeps networks from being ready is a finding, unless another one says why. So is what the
// daemon does not serve.
func TestReadiness(t *testing.T) {
	r := newRig(t)
	h := r.host()
	notReady := errors.Join(
		errors.New("network \"web\": the file of its subnet is missing"),
		fmt.Errorf("%w: network \"web\" needs plugin \"odd\"", configurator.ErrPluginNotInstalled))
	h.Ready = func(context.Context) ([]readiness.Check, error) {
		return []readiness.Check{
			{Name: "configuration"}, {Name: "network", Network: "web", Err: notReady}, {Name: readiness.File, Warning: errors.New("is broken")},
			{Name: readiness.Listener, Warning: errors.New("d.hcl:5: ui: address already in use")},
		}, nil
	}
	made := slices.DeleteFunc(slices.Clone(checks), func(c check) bool { return c.name != "readiness" && c.name != "plugins" })
	report := h.examine(t.Context(), made)
	require.Equal(t, []string{"not-ready", "not-ready", "not-served"}, kindsOf(report.Findings), "no plugin is missing")
	require.Contains(t, report.Findings[0].What, "the file of its subnet is missing")
	require.Contains(t, report.Findings[2].What, "address already in use")
	r.network("20-odd", r.chain("odd", "odd0", "10.78.0.0/24", `, {"type": "odd"}`))
	ready := h.Ready
	h = r.host()
	h.Ready = ready
	require.Equal(t, []string{"not-ready", "plugin-missing", "not-served"}, kindsOf(h.examine(t.Context(), made).Findings))

	h.Ready = func(context.Context) ([]readiness.Check, error) { return nil, errors.New("no answer") }
	require.Contains(t, kindsOf(h.examine(t.Context(), made).Findings), "not-checked")
}

// TestDefaultNetworkBeforeItsFirstUse: the embedded network is examined as soon as an allocation can be attached to
// it.
func TestDefaultNetworkBeforeItsFirstUse(t *testing.T) {
	r := newRig(t)
	missing := func() (list []string) {
		h := r.host()
		h.Engine = configurator.EngineExec
		findings, err := checkPlugins(t.Context(), h)
		require.NoError(t, err)
		for _, f := range findings {
			if f.Object == "allocnet" {
				list = append(list, f.ID)
			}
		}
		return list
	}
	require.Empty(t, missing(), "another network is the default")
	r.sh("mkdir -p /etc/allocnet; echo 'networks = [\"web\", \"allocnet\"]' >/etc/allocnet/allocnetd.hcl")
	require.Contains(t, missing(), "plugin-missing")
	r.sh("rm /etc/allocnet/allocnetd.hcl; rm -r " + r.path("conf"))
	require.Contains(t, missing(), "plugin-missing")
}

// TestLimitsOfAUser sets limits that a user namespace has of its own.
func TestLimitsOfAUser(t *testing.T) {
	privhost.Require(t, "unshare")
	for check, c := range map[string]struct{ limit, want string }{
		"inotify":    {"max_inotify_instances", "no further inotify instance"},
		"namespaces": {"max_net_namespaces", "no further network namespace can be made: create sandbox: make namespace: a limit of the host is reached"},
	} {
		cmd := exec.Command("unshare", "-U", "-r", "sh", "-c", "echo 0 >/proc/sys/user/"+c.limit+" && exec "+os.Args[0])
		cmd.Env = append(os.Environ(), helperVariable+"="+check)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), c.want)
	}
}

func TestDisk(t *testing.T) {
	for name, c := range map[string]struct{ options, fill, want string }{
		"bytes": {"size=256k", "head -c 200k /dev/zero >%s/x", "KiB left"},
		"files": {"nr_inodes=16", "for i in $(seq 12); do touch %s/$i; done", "more files"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.sh("mkdir " + r.path("leases") + " && mount -t tmpfs -o mode=700," + c.options + " none " + r.path("leases"))
			r.undo("umount " + r.path("leases"))
			r.healthy()
			r.sh(replace(c.fill, r.path("leases")))
			r.finds("disk-full", []string{r.path("leases"), c.want})
		})
	}
}

func replace(text, dir string) string {
	out, _ := exec.Command("sh", "-c", `printf "$0" "$1"`, text, dir).Output()
	return string(out)
}

func TestStateDirectory(t *testing.T) {
	r := newRig(t)
	r.sh("chmod 777 " + r.path("state"))
	f := r.finds("state-dir", []string{r.path("state")}, "not-checked")
	require.Contains(t, f.Repair, "chmod go-w")
}

// TestLinkedStateDirectory: operations follow a symbolic link, so it is none that is to be removed.
func TestLinkedStateDirectory(t *testing.T) {
	r := newRig(t)
	r.sh("mv " + r.path("state") + " " + r.path("elsewhere") + " && ln -s elsewhere " + r.path("state"))
	conf, err := configurator.New(configurator.Config{ConfDir: r.path("conf"), StateDir: r.path("state"), PluginDirs: []string{r.path("bin")}, OneShot: true})
	require.NoError(t, err)
	r.conf = conf
	r.healthy()
	r.sh("chmod 777 " + r.path("elsewhere"))
	require.Contains(t, r.finds("state-dir", []string{r.path("state")}, "not-checked").Repair, "chmod go-w "+r.path("elsewhere"))
}

func TestClock(t *testing.T) {
	r := newRig(t)
	r.sh("touch -d '1 day' " + r.path("conf/10-web.conflist"))
	r.finds("clock", []string{"10-web.conflist was written at"})
	r.sh("touch " + r.path("conf/10-web.conflist"))
	r.setup("web")
	h := r.host()
	h.Examine(t.Context())
	require.Contains(t, h.clock(time.Now().Add(-time.Hour))[0].What, `the record of allocation "web" was made at`)
}

// TestNotChecked: a check that cannot be completed is a finding.
func TestNotChecked(t *testing.T) {
	r := newRig(t)
	h := r.host()
	h.NetnsDir = r.path("conf/10-web.conflist")
	report := h.Examine(t.Context())
	require.NotEmpty(t, report.Findings)
	for _, f := range report.Findings {
		require.Equal(t, "not-checked", f.ID)
	}
	require.Contains(t, describe(report.Findings), "the check of network namespaces could not be completed")
}

func TestPrivileges(t *testing.T) {
	privhost.Require(t)
	var findings []Finding
	var err error
	privhost.Unprivileged(t, func() { findings, err = checkPrivileges(context.Background(), nil) })
	require.NoError(t, err)
	require.Len(t, findings, 1)
	require.Contains(t, findings[0].What, "CAP_NET_ADMIN")
}

// TestPools: prepared network namespaces belong to the process that prepares them.
func TestPools(t *testing.T) {
	r := newRig(t)
	pooled, err := configurator.New(configurator.Config{
		ConfDir: r.path("conf"), StateDir: r.path("state"), PluginDirs: []string{r.path("bin")},
		Pools: []configurator.Pool{{Network: "web", Size: 2}},
	})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return pooled.Pools()[0].Ready == 2 }, 20*time.Second, 10*time.Millisecond)
	r.healthy()
	require.NoError(t, pooled.Close())
	r.healthy()
}
