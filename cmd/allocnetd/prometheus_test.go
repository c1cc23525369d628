package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/allocnet/allocnet/cmd/internal/exporter/certtest"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

const (
	alertsFile    = "../../packaging/prometheus/alerts.yml"
	dashboardFile = "../../packaging/grafana/allocnet.json"
)

// alertNames returns the names of all alerts.
func alertNames(t *testing.T) (all []string) {
	data, err := os.ReadFile(alertsFile)
	require.NoError(t, err)
	var file struct {
		Groups []struct {
			Rules []struct{ Alert string }
		}
	}
	require.NoError(t, yaml.Unmarshal(data, &file))
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			all = append(all, r.Alert)
		}
	}
	require.NotEmpty(t, all)
	return all
}

// TestAlerts checks the rules, and that each fires for a host with its fault and for no
// other one.
func TestAlerts(t *testing.T) {
	privhost.Require(t, "promtool")
	out, err := exec.Command("promtool", "check", "rules", "--lint=all", "--lint-fatal", alertsFile).CombinedOutput()
	require.NoError(t, err, string(out))
	rules, err := os.ReadFile(alertsFile)
	require.NoError(t, err)
	cases, err := os.ReadFile("testdata/alerts_test.yml")
	require.NoError(t, err)
	for _, name := range alertNames(t) {
		require.Contains(t, string(cases), `alertname="`+name+`",instance="bad"`)
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "alerts.yml"), rules, 0o600))
	file := filepath.Join(dir, "alerts_test.yml")
	require.NoError(t, os.WriteFile(file, cases, 0o600))
	out, err = exec.Command("promtool", "test", "rules", file).CombinedOutput()
	require.NoError(t, err, string(out))
}

// prometheus is a running Prometheus that scrapes the daemon.
type prometheus struct{ *workspace }

const prometheusAddress = "127.0.0.1:9090"

// startPrometheus starts Debian's Prometheus, which scrapes the daemon over TLS with a
// client certificate, and evaluates the alerts.
func (w *workspace) startPrometheus(a *certtest.Authority) prometheus {
	alerts, err := filepath.Abs(alertsFile)
	require.NoError(w, err)
	w.write("prometheus.yml", `
global: {scrape_interval: 400ms, scrape_timeout: 400ms, evaluation_interval: 400ms}
rule_files: ["`+alerts+`"]
scrape_configs:
  - job_name: allocnetd
    scheme: https
    tls_config: {ca_file: "`+a.Path("ca.pem")+`", cert_file: "`+a.Path("client.pem")+`", key_file: "`+a.Path("client.key")+`"}
    static_configs: [{targets: ["127.0.0.1:9653"]}]
`)
	out, err := exec.Command("promtool", "check", "config", w.path("prometheus.yml")).CombinedOutput()
	require.NoError(w, err, string(out))
	log, err := os.Create(w.path("prometheus.log"))
	require.NoError(w, err)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "prometheus", "--config.file="+w.path("prometheus.yml"), "--storage.tsdb.path="+w.path("tsdb"),
		"--web.listen-address="+prometheusAddress)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(w, cmd.Start())
	w.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		_ = log.Close()
		if w.Failed() {
			text, _ := os.ReadFile(log.Name())
			w.Log(string(text))
		}
	})
	p := prometheus{w}
	require.Eventually(w, func() bool {
		response, err := http.Get("http://" + prometheusAddress + "/-/ready")
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	}, time.Minute, 20*time.Millisecond)
	return p
}

// get requests a path of Prometheus' API. The answer must be a success.
func (p prometheus) get(path string, query url.Values, into any) {
	p.Helper()
	response, err := http.Get("http://" + prometheusAddress + "/api/v1/" + path + "?" + query.Encode())
	require.NoError(p, err)
	defer response.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: into}
	require.NoError(p, json.NewDecoder(response.Body).Decode(&answer))
	require.Equal(p, "success", answer.Status, "%s: %s", query, answer.Error)
}

type vector struct {
	Result []struct{ Value [2]any } // time and value
}

func (p prometheus) query(expr string) (v vector) {
	p.Helper()
	p.get("query", url.Values{"query": {expr}}, &v)
	return v
}

// dashboardQueries returns the expressions of the dashboard by the title of their panel,
// with Grafana's variables replaced.
func dashboardQueries(t *testing.T) map[string][]string {
	data, err := os.ReadFile(dashboardFile)
	require.NoError(t, err)
	var dashboard struct {
		Templating struct {
			List []struct{ Definition string }
		}
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(data, &dashboard))
	require.Equal(t, "label_values(allocnet_build_info, instance)", dashboard.Templating.List[1].Definition)
	queries, ids := map[string][]string{}, map[int]bool{}
	for _, p := range dashboard.Panels {
		require.False(t, ids[p.ID], "panel %d occurs twice", p.ID)
		ids[p.ID] = true
		for _, target := range p.Targets {
			expr := strings.NewReplacer("$instance", ".*", "$__rate_interval", "1m").Replace(target.Expr)
			require.NotContains(t, expr, "$")
			queries[p.Title] = append(queries[p.Title], expr)
		}
	}
	require.Greater(t, len(queries), 20)
	return queries
}

// TestPrometheus has a real Prometheus scrape the daemon: every query of the dashboard has
// data, and every alert can be evaluated. Those that apply to the host are pending.
func TestPrometheus(t *testing.T) {
	privhost.Require(t, "prometheus", "promtool")
	w := newWorkspace(t)
	addDefaultRoute(t)
	a := certtest.New(t)
	a.Issue("server")
	a.Issue("client")
	w.write("web.yml", `
tls_server_config:
  cert_file: `+a.Path("server.pem")+`
  key_file: `+a.Path("server.key")+`
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: `+a.Path("ca.pem"))
	w.write("conf/broken.conflist", "{")
	w.configure(embedded, `metrics {`, `listen = "127.0.0.1:9653"`, `web_config = "`+w.path("web.yml")+`"`, `}`, `pool "allocnet" { size = 1 }`, `policy = ["no-metadata"]`)
	d := w.start()
	w.allocate("a1")
	a1, err := w.client().Get(background(), "a1")
	require.NoError(t, err)
	w.allocate("a2")
	w.release("a2")
	p := w.startPrometheus(a)
	// With two scrapes every rate has a value. On a busy host single scrapes can fail.
	eventually := func(expr, message string) {
		require.Eventually(t, func() bool { return len(p.query(expr).Result) > 0 }, time.Minute, 50*time.Millisecond, message)
	}
	eventually(`sum_over_time(up{job="allocnetd"}[1m]) >= 3`, "scrapes fail")

	queries := dashboardQueries(t)
	denied := queries["Packets denied by network policies"]
	require.Len(t, denied, 1)
	require.Eventually(t, func() bool { // packets before the first scrape are not part of the rate
		sendFrom(t, &configurator.Allocation{Netns: a1.Netns}, "169.254.169.254:80", 1)
		return len(p.query(`(`+denied[0]+`) > 0`).Result) > 0
	}, time.Minute, 50*time.Millisecond, "no packet was denied: "+denied[0])
	var labels struct {
		Result []struct{ Metric map[string]string }
	}
	p.get("query", url.Values{"query": {`(` + denied[0] + `) > 0`}}, &labels)
	require.Equal(t, map[string]string{"network": "allocnet", "direction": "egress"}, labels.Result[0].Metric)
	for title, queries := range queries {
		for _, expr := range queries {
			eventually(expr, title+" has no data: "+expr)
		}
	}
	eventually(`sum(allocnet_allocations) == 1`, "one allocation")
	var instances []string
	eventually(`ALERTS{alertname="AllocnetDoctorErrors"}`, "doctor finds the invalid file")
	p.get("label/instance/values", url.Values{"match[]": {"allocnet_build_info"}}, &instances)
	require.Equal(t, []string{"127.0.0.1:9653"}, instances)
	p.alerts(w)
	w.release("a1")
	d.stop()
}

// alerts waits until all rules were evaluated.
func (p prometheus) alerts(w *workspace) {
	type rule struct{ Name, State, Health, LastError string }
	var rules struct{ Groups []struct{ Rules []rule } }
	require.Eventually(w, func() bool {
		p.get("rules", nil, &rules)
		return len(rules.Groups) == 1 && !slices.ContainsFunc(rules.Groups[0].Rules, func(r rule) bool { return r.Health == "unknown" })
	}, time.Minute, 50*time.Millisecond)
	var names []string
	for _, r := range rules.Groups[0].Rules {
		names = append(names, r.Name)
		require.Equal(w, "ok", r.Health, "%s: %s", r.Name, r.LastError)
		want := "inactive"
		if r.Name == "AllocnetConfigFiles" || r.Name == "AllocnetDoctorErrors" {
			want = "pending"
		}
		require.Equal(w, want, r.State, r.Name)
	}
	require.Equal(w, alertNames(w.T), names)
}

// metricName matches the names of metrics, which are followed by labels or a range.
var metricName = regexp.MustCompile(`allocnet_[a-z_]+`)

// TestAlertsNameMetrics: every metric in the alerts and the dashboard exists, so that a
// renamed one does not leave a rule without effect.
func TestAlertsNameMetrics(t *testing.T) {
	data, err := os.ReadFile("../internal/telemetry/testdata/metrics.txt")
	require.NoError(t, err)
	for _, file := range []string{alertsFile, dashboardFile} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		names := metricName.FindAllString(string(text), -1)
		require.NotEmpty(t, names)
		for _, name := range names {
			require.True(t, strings.Contains(string(data), "\n"+name), "%s: there is no metric %s", file, name)
		}
	}
}
