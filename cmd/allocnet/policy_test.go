package main

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/netpolicy"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/sandbox"
)

// listenIn accepts and closes TCP connections in a network namespace until the test ends.
func listenIn(t *testing.T, s *sandbox.Sandbox, port string) {
	t.Helper()
	var l net.Listener
	require.NoError(t, s.Do(func() (err error) {
		l, err = net.Listen("tcp", ":"+port)
		return err
	}))
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
}

// dialFrom reports whether a TCP connection from a network namespace can be established.
func dialFrom(t *testing.T, s *sandbox.Sandbox, address string, timeout time.Duration) error {
	t.Helper()
	return s.Do(func() error {
		c, err := net.DialTimeout("tcp", address, timeout)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// TestPolicy gives allocations policies, shows what they mean, and changes them. What the
// commands say is what the kernel does.
func TestPolicy(t *testing.T) {
	w := newWorkspace(t)
	web, db := w.sandbox("web"), w.sandbox("db")
	listenIn(t, db, "80")
	listenIn(t, db, "81")
	file := w.path("db.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"ingress":{"default":"deny","rules":[{"name":"clients","peers":[{"labels":{"app":"web"}}],"services":[{"protocol":"tcp","ports":"80"}]}]}}`), 0o600))
	setup := []string{"setup", "db", "--network", "allocnet", "--policy", file, "--json"}
	at := decode[configurator.Status](t, w.run(setup...).ok(t)).Address
	w.run("setup", "web", "--network", "allocnet", "-l", "app=web", "--policy", "no-metadata").ok(t)
	require.NoError(t, dialFrom(t, web, at+":80", 10*time.Second))
	require.Error(t, dialFrom(t, web, at+":81", 400*time.Millisecond))
	require.False(t, decode[configurator.Status](t, w.run(setup...).ok(t)).Created)

	require.Regexp(t, `(?m)^db .* - +ingress:deny\+1 +-$`, w.run("ls", "--wide").ok(t))
	require.Regexp(t, `(?m)^web .* app=web +no-metadata +-$`, w.run("ls", "--wide").ok(t))
	require.NotContains(t, w.run("ls").ok(t), "POLICY")
	require.Regexp(t, `(?s)Policy of allocation db\nDIRECTION +VERDICT +PEER +SERVICE +RULE\ningress +allow +label:app=web +tcp/80 +clients\ningress +allow +host`, w.run("inspect", "db").ok(t))
	require.Equal(t, []policy.Preset{"no-metadata"}, decode[configurator.Record](t, w.run("inspect", "web", "--json").ok(t)).Policy.Presets)

	require.Regexp(t, `^\S+ \(allocation web\) -> \S+ \(allocation db\), tcp/80: allowed\nPOLICY OF +DIRECTION +VERDICT +RULE\nnetwork allocnet +egress of web +allow +default\nallocation web +egress of web +allow +default\nnetwork allocnet +ingress of db +allow +default\nallocation db +ingress of db +allow +clients\n`,
		w.run("policy", "explain", "web", "--to", "db", "tcp/80").ok(t))
	require.Regexp(t, `^192.0.2.1 -> \S+ .*, tcp/81: denied by preset published-only of network allocnet\n(.*\n)*allocation db +ingress of db +deny +default\n`,
		w.run("policy", "explain", "db", "--from", "192.0.2.1", "81/tcp").ok(t))
	require.Contains(t, w.run("policy", "explain", "web", "--to", "169.254.169.254", "tcp/80").ok(t), "denied by preset no-metadata of allocation web")
	require.Contains(t, w.run("policy", "explain", "db", "--to", at, "tcp/81").ok(t), "no policy applies", "it does not leave the allocation")
	require.Regexp(t, `\(host\), tcp/80: allowed`, w.run("policy", "explain", "web", "--to", "host", "tcp/80").ok(t), "the gateway")
	out, err := exec.Command("sh", "-c", "ip link add uplink type bridge && ip link set uplink up && ip addr add 198.51.100.7/24 dev uplink && ip addr add 2001:db8:7::7/64 dev uplink nodad").CombinedOutput()
	require.NoError(t, err, string(out))
	require.Regexp(t, `^\S+ \(allocation web\) -> 10\.\S+ \(host\), tcp/53: allowed\nPOLICY(.*\n)+\n\S+ \(allocation web\) -> 198\.51\.100\.7 \(host\), tcp/53: denied by preset no-host of network allocnet\nPOLICY`,
		w.run("policy", "explain", "web", "--to", "host", "tcp/53").ok(t), "a resolver of the host")
	toHost := decode[[]explanation](t, w.run("policy", "explain", "web", "--to", "host", "tcp/53", "--json").ok(t))
	require.Len(t, toHost, 4)
	require.Equal(t, []policy.Verdict{policy.Allow, policy.Deny, policy.Allow, policy.Deny}, []policy.Verdict{toHost[0].Verdict, toHost[1].Verdict, toHost[2].Verdict, toHost[3].Verdict})
	out, err = exec.Command("ip", "link", "del", "uplink").CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, w.run("policy", "explain", "web", "--to", "127.0.0.1", "tcp/80").ok(t), "denied by preset no-host of network allocnet")
	require.Regexp(t, `\(host\) -> .*: allowed\n.*\nnetwork .*\nallocation db +ingress of db +allow +host\n`, w.run("policy", "explain", "db", "--from", "host", "tcp/81").ok(t))
	explained := decode[[]explanation](t, w.run("policy", "explain", "db", "--from", "web", "tcp/81", "--json").ok(t))
	require.Len(t, explained, 2, "one for each address family")
	require.Equal(t, []any{policy.Deny, "db", "default"}, []any{explained[0].Verdict, explained[0].Reasons[3].Allocation, explained[0].Reasons[3].Rule})

	require.Regexp(t, `(?m)^db +ingress +\S+ \(web\) +tcp/81 +\d+ +default +allocation db$`, w.run("policy", "denied").ok(t))
	require.Equal(t, "no flow was denied in the last five minutes\n", w.run("policy", "denied", "web").errOut)
	flows := decode[client.HostDenials](t, w.run("policy", "denied", "db", "--json").ok(t)).Flows
	require.Equal(t, "web default", flows[0].PeerID+" "+flows[0].Rule)
	require.Equal(t, "not-found", w.run("policy", "denied", "nobody", "--json").failure(t, exitNo).Kind)
	require.Regexp(t, `(?m)^db +allocnet +.* \d+ +[1-9]\d* +\d+$`, w.run("top", "--once").ok(t))

	text := runWith(`{"ingress":{"default":"deny","rules":[{"peers":[{"allocation":"web"}]}]}}`, append([]string{"set", "db", "--policy", "-", "-l", "a=b"}, w.flags()...)...).ok(t)
	require.Regexp(t, `^\S+ db is changed\n$`, text)
	require.NoError(t, dialFrom(t, web, at+":81", 10*time.Second))
	w.run("set", "db", "--policy", "isolated").ok(t)
	require.Error(t, dialFrom(t, web, at+":80", 400*time.Millisecond))
	w.run("set", "db", "--policy", "none").ok(t)
	require.NoError(t, dialFrom(t, web, at+":80", 10*time.Second))
	require.Nil(t, decode[configurator.Record](t, w.run("inspect", "db", "--json").ok(t)).Policy)
	w.run("setup", "db", "--network", "allocnet", "--label", "a=b", "--policy", "none").ok(t)
	require.Regexp(t, `: allowed\n.*\nnetwork allocnet +egress of db +allow +default\n$`, w.run("policy", "explain", "db", "--to", "192.0.2.1", "tcp/1").ok(t))
	for _, id := range []string{"web", "db"} {
		w.run("teardown", id).ok(t)
	}
}

// TestPolicyErrors: each error names the place.
func TestPolicyErrors(t *testing.T) {
	w := newWorkspace(t)
	w.sandbox("web")
	w.run("setup", "web").ok(t)
	bad := w.path("bad.json")
	require.NoError(t, os.WriteFile(bad, []byte(`{"egress":{"rules":[{"services":[{"protocol":"tcp","ports":"9-1"}]}]}}`), 0o600))
	for want, args := range map[string][]string{
		"bad.json: check policy: egress.rules[0].services[0].ports": {"policy", "check", bad},
		"--policy: " + bad:             {"setup", "web", "--policy", bad},
		"the presets are isolated":     {"set", "web", "--policy", "nothing"},
		"bandwidth policy":             {"set", "web"},
		"from to":                      {"policy", "explain", "web", "--to", "a", "--from", "b", "tcp/1"},
		"to from":                      {"policy", "explain", "web", "tcp/1"},
		"give one port":                {"policy", "explain", "web", "--to", "192.0.2.1", "tcp"},
		`unknown command "nothing"`:    {"policy", "nothing"},
		`"" is not a peer`:             {"policy", "explain", "web", "--to", "", "tcp/1"},
		`"10.0.0.0/8" is not a peer`:   {"policy", "explain", "web", "--to", "10.0.0.0/8", "tcp/1"},
		`"fe80::1%eth0" is not a peer`: {"policy", "explain", "web", "--from", "fe80::1%eth0", "tcp/1"},
	} {
		require.Contains(t, w.run(append(args, "--json")...).failure(t, exitUsage).Error, want, args)
	}
	for _, args := range [][]string{{"nobody", "--to", "host"}, {"web", "--to", "nobody"}} {
		require.Equal(t, "not-found", w.run(append([]string{"policy", "explain", args[0], "tcp/1", "--json"}, args[1:]...)...).failure(t, exitNo).Kind, args)
	}
	require.Contains(t, w.run("set", "web", "--policy", bad, "--json").failure(t, exitUsage).Hint, "allocnet policy check FILE")
	refused := w.run("set", "web", "--policy", "isolated", "--json").failure(t, exitUsage)
	require.Equal(t, "unserved", refused.Kind, "no plugin of its network enforces policies")
	w.run("teardown", "web").ok(t)
}

func TestPolicyCheck(t *testing.T) {
	text := runWith("", "policy", "check", "egress-only,no-private").ok(t)
	require.Regexp(t, `(?m)^egress +deny +fc00::/7 +any +preset no-private$`, text)
	require.Regexp(t, `(?m)^egress +allow +world +any +preset egress-only\negress +deny +any +any +default$`, text)
	report := decode[rulesReport](t, runWith(`{"presets":["isolated"]}`, "policy", "check", "-", "--json").ok(t))
	require.Equal(t, []policy.Preset{policy.Isolated}, report.Policy.Presets)
	require.Equal(t, netpolicy.Rule{Direction: "egress", Verdict: policy.Deny, Peer: "any", Service: "any", Rule: "default"}, report.Rules[len(report.Rules)-1])
}

func TestPolicyTranslate(t *testing.T) {
	document := `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"db","namespace":"shop"},"spec":{"podSelector":{"matchLabels":{"app":"db"}},
		"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"web"}}}],"ports":[{"port":"sql"}]}]}}`
	args := []string{"policy", "translate", "-", "--namespace", "shop", "-l", "app=db", "--namespace-label", "team=a", "--port", "sql=tcp/5432"}
	p, err := policy.Parse([]byte(runWith(document, args...).ok(t)))
	require.NoError(t, err)
	require.Equal(t, policy.Deny, p.Ingress.Default)
	require.Equal(t, "5432", p.Ingress.Rules[0].Services[0].Ports)
	labels := decode[translation](t, runWith(document, append(args, "--json")...).ok(t)).Labels
	require.Equal(t, "a", labels["namespace.allocnet/team"])
	require.Equal(t, "db", labels["app"])
	require.Contains(t, labels, "sql.tcp.port.allocnet/5432")
	require.Contains(t, runWith("{", "policy", "translate", "-", "--json").failure(t, exitUsage).Error, "document")
}

// TestTranslateNamedPorts checks that the number of a name depends on the direction and the peer.
func TestTranslateNamedPorts(t *testing.T) {
	document := `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"p"},"spec":{"policyTypes":["Ingress","Egress"],
		"ingress":[{"ports":[{"port":"web"}]}],"egress":[{"to":[{"podSelector":{}},{"ipBlock":{"cidr":"10.0.0.0/8"}}],"ports":[{"port":"web"}]}]}}`
	translate := func(flags ...string) outcome {
		return runWith(document, append([]string{"policy", "translate", "-"}, flags...)...)
	}
	labels := func(flags ...string) map[string]string {
		return decode[translation](t, translate(append(flags, "--json")...).ok(t)).Labels
	}
	out := translate("--port", "web=tcp/9000", "--peer-port", "web=tcp/80", "--peer-port", "web=tcp/8080")
	p, err := policy.Parse([]byte(out.ok(t)))
	require.NoError(t, err)
	require.Contains(t, out.errOut, `egress[0].ports[0].port: port "web" has a number at pods only`)
	require.NotContains(t, out.errOut, "ingress")
	b, c := labels("--port", "web=tcp/80"), labels("--port", "web=tcp/8080")
	for _, one := range []struct {
		traffic policy.Traffic
		labels  map[string]string
		port    uint16
		want    policy.Verdict
	}{
		{policy.Ingress, b, 9000, policy.Allow},
		{policy.Ingress, b, 80, policy.Deny},
		{policy.Egress, b, 80, policy.Allow},
		{policy.Egress, b, 8080, policy.Deny},
		{policy.Egress, c, 8080, policy.Allow},
		{policy.Egress, c, 80, policy.Deny},
		{policy.Egress, c, 9000, policy.Deny},
		{policy.Egress, nil, 80, policy.Deny},
	} {
		remote := policy.Remote{Addr: netip.MustParseAddr("10.1.2.3"), Known: one.labels != nil, Labels: one.labels}
		require.Equal(t, one.want, p.Decide(one.traffic, remote, policy.Flow{Protocol: 6, Port: one.port}).Verdict, "%+v", one)
	}
	out = translate("--port", "web=tcp/80")
	require.Contains(t, out.errOut, `no peer has a tcp port "web"`)
	out.ok(t)
	out = translate("--peer-port", "web=tcp/80")
	require.Contains(t, out.errOut, `the pod has no tcp port "web"`)
	out.ok(t)
	require.Contains(t, translate("--peer-port", "web", "--json").failure(t, exitUsage).Error, `--peer-port "web"`)
	require.Contains(t, translate("--port", "web=icmp", "--json").failure(t, exitUsage).Error, `protocol "icmp" is not tcp, udp or sctp`)
}

func TestCompletePolicies(t *testing.T) {
	complete := func(args ...string) string { return runWith("", append([]string{"__complete"}, args...)...).ok(t) }
	for _, command := range [][]string{{"setup", "web", "--policy"}, {"set", "web", "--policy"}, {"policy", "check"}} {
		got := complete(append(command, "no-")...)
		require.Contains(t, got, "no-metadata\tdenies egress to metadata")
		require.NotContains(t, got, "isolated")
		got = complete(append(command, "no-metadata,")...)
		require.Contains(t, got, "no-metadata,isolated\t")
		require.Equal(t, 5, strings.Count(got, "no-metadata,"))
		require.Contains(t, complete(append(command, "./p")...), ":0", "files")
	}
}
