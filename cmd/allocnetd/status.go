package main

import (
	"context"
	"os"
	"time"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/doctor"
	"github.com/allocnet/allocnet/cmd/internal/hoststatus"
	"github.com/allocnet/allocnet/cmd/internal/telemetry"
	"github.com/allocnet/allocnet/internal/buildinfo"
)

// status returns the overview of the host that GET /v1/status serves.
func (h *host) status(ctx context.Context) *client.HostStatus {
	b, g := newBuild(buildinfo.Read()), h.active()
	var problems []string
	for _, o := range h.optional {
		if err := o.fault(); err != nil {
			problems = append(problems, err.Error())
		}
	}
	var known hoststatus.Known
	if c := h.checker.Load(); c != nil {
		known = c
	}
	return hoststatus.Collect(ctx, hoststatus.Options{
		Service: g.service, Networks: g.networks.Networks, Engine: g.settings.Engine, ConfDir: g.settings.ConfDir, Recent: &h.recent,
		Host: h.doctor(g), Ready: h.ready, Known: known,
		Daemon: &client.DaemonStatus{Version: b.Version, Revision: b.Revision, PID: os.Getpid(), Started: h.started, Problems: problems},
	})
}

// measureTime bounds a count for the metrics.
const measureTime = 20 * time.Second

// findings counts what the quick checks of doctor find, by severity.
func (h *host) findings() (map[string]int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), measureTime)
	defer cancel()
	counts := map[string]int{string(doctor.Error): 0, string(doctor.Warning): 0}
	for _, f := range h.doctor(h.active()).ExamineQuickly(ctx).Findings {
		counts[string(f.Severity)]++
	}
	return counts, nil
}

// readyNetworks returns 1 for each network that is ready, 0 for others, and the same for the conditions of all
// networks as "".
func (h *host) readyNetworks() (map[string]int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), measureTime)
	defer cancel()
	ready := map[string]int{"": 1}
	for _, c := range h.ready(ctx) {
		if c.NoDefault() {
			continue
		}
		if c.Err != nil {
			ready[c.Network] = 0
		} else if _, known := ready[c.Network]; !known {
			ready[c.Network] = 1
		}
	}
	return ready, ctx.Err()
}

// healReport publishes repairs, and notes them for the overview of the host.
type healReport struct {
	*telemetry.Telemetry
	recent *hoststatus.Recent
}

func (r healReport) Healed(heal client.Heal) {
	r.recent.Healed(heal)
	r.Telemetry.Healed(heal)
}
