package main

import (
	"context"
	"os"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/hoststatus"
	"github.com/allocnet/allocnet/cmd/internal/telemetry"
	"github.com/allocnet/allocnet/internal/buildinfo"
)

// status returns the overview of the host that GET /v1/status serves.
func (h *host) status(ctx context.Context) *client.HostStatus {
	b, g := newBuild(buildinfo.Read()), h.active()
	var problems []string
	for _, o := range h.optional {
		if p := o.report(); p != "" {
			problems = append(problems, p)
		}
	}
	return hoststatus.Collect(ctx, hoststatus.Options{
		Service: g.service, Networks: g.networks.Networks, Engine: g.settings.Engine, ConfDir: g.settings.ConfDir, Recent: &h.recent, Host: h.doctor(g),
		Daemon: &client.DaemonStatus{Version: b.Version, Revision: b.Revision, PID: os.Getpid(), Started: h.started, Problems: problems},
	})
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
