package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
)

// watch tells systemd's watchdog, where the unit has one, that the daemon is
// alive, as long as it answers. When it is to end it need not answer any more.
func (d *daemon) watch(ctx, serving context.Context) error {
	interval, err := sd.SdWatchdogEnabled(false)
	if err != nil {
		d.Logger.Warn("the watchdog is not told anything", "error", err)
	}
	if interval == 0 || err != nil {
		return nil
	}
	ticker := time.NewTicker(interval / 2)
	defer ticker.Stop()
	for {
		d.beat(serving, interval/2)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (d *daemon) beat(serving context.Context, within time.Duration) {
	ctx, cancel := context.WithTimeout(serving, within)
	defer cancel()
	if err := d.probe(ctx); err != nil && serving.Err() == nil {
		d.Logger.Error("the daemon does not answer itself", "error", err)
		return
	}
	d.notifier.alive()
}

// probe asks the daemon as a client does. Any answer will do: one that is busy, or
// not ready, is not to be killed for it.
func (d *daemon) probe(ctx context.Context) error {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return d.Listener.dial() },
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+d.HealthPath, nil)
	if err != nil {
		return fmt.Errorf("ask for %q: %w", d.HealthPath, err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("ask for %q: %w", d.HealthPath, err)
	}
	return response.Body.Close()
}
