package main

import (
	"context"
	"fmt"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/doctor"
	"github.com/allocnet/allocnet/cmd/internal/readiness"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/cmd/internal/ui"
	"github.com/allocnet/allocnet/internal/wire"
)

func newUI(a *app) *cobra.Command {
	var listen string
	c := &cobra.Command{
		Use:   "ui",
		Short: "Show the networks of this host in a browser",
		Long: `Serve a page with the networks of this host until interrupted: a picture of uplinks,
networks, allocations and ports, the operations as they happen with their steps, their
durations, leases, configuration errors and the findings of doctor.

Open the printed URL in a browser. The URL contains a token, which changes with each
start. With the token, a program can read everything on the page. The page changes
nothing. It is served on a loopback address only: from another host, forward the port,
for example with ssh -L 9654:127.0.0.1:9654, and open the same URL there.

Without the daemon the page has no durations, and operations appear with a delay.`,
		Example: `  allocnet ui
  allocnet ui --listen 127.0.0.1:9654`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(c *cobra.Command, _ []string) error { return a.ui(c.Context(), listen) },
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "loopback address and port to serve on; port 0 selects a free one")
	_ = c.RegisterFlagCompletionFunc("listen", cobra.NoFileCompletions)
	return c
}

// ui serves the page until the context ends.
func (a *app) ui(ctx context.Context, listen string) error {
	if _, err := settings.LoopbackAddress(listen); err != nil {
		return usagef("--listen %q: %v", listen, err)
	}
	options, err := a.uiOptions()
	if err != nil {
		return err
	}
	options.Address = listen
	server, err := ui.Listen(*options)
	if err != nil {
		return err
	}
	if a.flags.json {
		err = a.out.JSON(struct {
			URL string `json:"url"`
		}{server.URL()})
	} else {
		a.out.Printf("%s\n", server.URL())
		a.err.Printf("open this URL in a browser; interrupt to end\n")
	}
	if err == nil {
		err = a.out.Failure()
	}
	if err != nil {
		_ = server.Close()
		return err
	}
	return server.Run(ctx)
}

// uiOptions returns what the page reads: from the daemon, or in this process if no daemon
// runs. The files of the networks, the leases and the kernel are always read here.
func (a *app) uiOptions() (*ui.Options, error) {
	daemon, err := a.daemon()
	if err != nil {
		return nil, err
	}
	h, err := a.doctorHost(context.Background())
	if err != nil {
		return nil, err
	}
	networks, err := a.configurations()
	if err != nil {
		return nil, err
	}
	o := &ui.Options{
		Service:  func() allocnet.Service { return h.Service },
		Networks: networks.Networks,
		Status: func(ctx context.Context) (*client.HostStatus, error) {
			return hereStatus(ctx, h, networks), nil
		},
		Doctor: func(ctx context.Context) (*doctor.Report, error) {
			now := *h
			now.Networks, now.Skipped = networks.Networks()
			now.Ready = func(ctx context.Context) ([]readiness.Check, error) { return a.readiness(ctx, &now) }
			return now.Examine(ctx), nil
		},
		Logger: a.logger(),
	}
	if daemon != nil {
		o.Service, o.Status = func() allocnet.Service { return daemon }, daemon.HostStatus
		o.Events = func(ctx context.Context, last uint64) <-chan wire.Event { return eventsOf(ctx, daemon, last) }
		o.Metrics = a.metrics
	}
	return o, nil
}

// eventsOf returns the events of the daemon, until the context or the connection ends.
func eventsOf(ctx context.Context, daemon *client.Client, last uint64) <-chan wire.Event {
	events := make(chan wire.Event)
	go func() {
		defer close(events)
		for e, err := range daemon.Events(ctx, last) {
			if err != nil {
				return
			}
			select {
			case <-ctx.Done():
				return
			case events <- wire.Event{ID: e.ID, Time: e.Time, Type: e.Type, Data: e.JSON}:
			}
		}
	}()
	return events
}

// metrics reads the metrics of the daemon.
func (a *app) metrics(ctx context.Context) ([]*dto.MetricFamily, error) {
	answer, err := a.get(ctx, "/metrics")
	if err != nil {
		return nil, fmt.Errorf("read the metrics of the daemon: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read the metrics of the daemon: %s", answer.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("read the metrics of the daemon: %w", err)
	}
	list := make([]*dto.MetricFamily, 0, len(families))
	for _, f := range families {
		list = append(list, f)
	}
	return list, nil
}
