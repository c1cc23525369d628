package testhost

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/allocnet/allocnet/sandbox"
)

// Get requests a URL from inside a sandbox, over a new connection.
func Get(from *sandbox.Sandbox, url string) (body string, err error) {
	dial := func(ctx context.Context, network, address string) (c net.Conn, err error) {
		err = from.Do(func() error {
			c, err = (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, network, address)
			return err
		})
		return c, err
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: 5 * time.Second}
	r, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	content, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, r.Status)
	}
	return string(content), err
}
