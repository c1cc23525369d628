package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
)

// watch sends keepalives to systemd's watchdog, if the unit has one, as long as the
// daemon answers. While the daemon ends it need not answer.
func (d *daemon) watch(ctx, serving context.Context) error {
	interval, err := sd.SdWatchdogEnabled(false)
	if err != nil {
		d.Logger.Warn("no keepalives are sent to the watchdog", "error", err)
	}
	if interval == 0 || err != nil {
		return nil
	}
	ticker := time.NewTicker(interval / 2)
	defer ticker.Stop()
	for {
		d.keepalive(serving, interval/2)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (d *daemon) keepalive(serving context.Context, within time.Duration) {
	ctx, cancel := context.WithTimeout(serving, within)
	defer cancel()
	if err := d.probe(ctx); err != nil && serving.Err() == nil {
		d.Logger.Error("the daemon does not answer itself", "error", err)
		return
	}
	d.notifier.keepalive()
}

// probe sends a request to the daemon as a client does. Any answer counts, because a
// daemon that is busy or not ready must not be killed.
func (d *daemon) probe(ctx context.Context) error {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return d.Listener.dial() },
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+d.HealthPath, nil)
	if err != nil {
		return fmt.Errorf("request %q: %w", d.HealthPath, err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("request %q: %w", d.HealthPath, err)
	}
	return response.Body.Close()
}
