package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"

	"github.com/allocnet/allocnet/cmd/internal/server/strict"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/netns"
	"github.com/allocnet/allocnet/internal/wire"
	"github.com/allocnet/allocnet/sandbox"
)

// createSandbox creates a sandbox. If it exists, the answer has both its path and an
// error.
func (a *API) createSandbox(_ *http.Request, b *body) (work, error) {
	var request wire.NewSandbox
	err := b.decode(&request, false)
	if err == nil && request.Name == "" {
		err = fmt.Errorf("%w: %w", wire.ErrMalformed, strict.Wrong("name", "is missing"))
	}
	return func(ctx context.Context) (any, error) {
		path, err := a.options.Sandboxes.Create(ctx, request.Name)
		switch {
		case errors.Is(err, fs.ErrExist):
			return wire.Sandbox{Path: a.options.Sandboxes.Path(request.Name), Error: wire.FromError(err)}, err
		case err != nil:
			return nil, err
		case ctx.Err() != nil: // the client does not wait for the answer any more
			return nil, errors.Join(ctx.Err(), a.options.Sandboxes.Destroy(request.Name))
		}
		return wire.Sandbox{Path: path}, nil
	}, err
}

// keyOfNewSandbox returns the key of the sandbox that the request's body names.
func keyOfNewSandbox(_ *http.Request, b *body) string {
	var request wire.NewSandbox
	_ = b.decode(&request, false) // it has been decoded before
	return sandboxKey + request.Name
}

func keyOfSandbox(r *http.Request, _ *body) string { return sandboxKey + r.PathValue("name") }

// sandboxKey is the prefix of the keys of sandboxes. IDs of allocations have no slash.
const sandboxKey = "sandbox/"

// destroySandbox destroys a sandbox unless an allocation uses it. The client may send
// the directory in which it expects the sandbox.
func (a *API) destroySandbox(r *http.Request, _ *body) (work, error) {
	name, dir := r.PathValue("name"), r.URL.Query().Get("dir")
	return func(ctx context.Context) (any, error) {
		path := a.options.Sandboxes.Path(name)
		if dir != "" && !netns.Same(dir, filepath.Dir(path)) {
			return nil, fmt.Errorf("destroy sandbox %q: its directory is %q, not %q: %w", name, filepath.Dir(path), dir, fs.ErrNotExist)
		}
		records, _ := a.options.Service().List(ctx) // records that cannot be read are ignored
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for i := range records {
			if !records[i].Acknowledged && netns.Same(records[i].Netns, path) {
				return nil, fmt.Errorf("destroy sandbox %q: %w", name, &configurator.NetnsError{Netns: path, OtherID: records[i].ID})
			}
		}
		return nil, a.options.Sandboxes.Destroy(name)
	}, nil
}

// Pooled returns Sandboxes that come from a pool, whose directory is dir.
func Pooled(pool *sandbox.Pool, dir string) Sandboxes { return pooled{pool, dir} }

type pooled struct {
	pool *sandbox.Pool
	dir  string
}

func (p pooled) Create(ctx context.Context, name string) (path string, err error) {
	s, err := p.pool.Take(ctx, name)
	if err != nil {
		return "", err
	}
	return s.Path(), s.Close()
}

func (p pooled) Path(name string) string { return filepath.Join(p.dir, name) }

func (p pooled) Destroy(name string) error {
	if err := sandbox.ValidateName(name); err != nil {
		return fmt.Errorf("destroy sandbox: %w", err)
	}
	return sandbox.Destroy(p.Path(name))
}
