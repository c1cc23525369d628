package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"

	"github.com/allocnet/allocnet/cmd/internal/server/strict"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/wire"
	"github.com/allocnet/allocnet/sandbox"
)

func (a *API) createSandbox(_ *http.Request, b *body) (work, error) {
	var asked wire.NewSandbox
	err := b.decode(&asked, false)
	if err == nil && asked.Name == "" {
		err = fmt.Errorf("%w: %w", wire.ErrMalformed, strict.Wrong("name", "is missing"))
	}
	return func(ctx context.Context) (any, error) {
		path, err := a.options.Sandboxes.Create(ctx, asked.Name)
		switch {
		case errors.Is(err, fs.ErrExist):
			return wire.Sandbox{Path: a.options.Sandboxes.Path(asked.Name), Error: wire.FromError(err)}, err
		case err != nil:
			return nil, err
		case ctx.Err() != nil: // nobody waits for the answer
			return nil, errors.Join(ctx.Err(), a.options.Sandboxes.Destroy(asked.Name))
		}
		return wire.Sandbox{Path: path}, nil
	}, err
}

// keyOfNewSandbox is that of keyOfSandbox for a request that has the name in its
// body.
func keyOfNewSandbox(_ *http.Request, b *body) string {
	var asked wire.NewSandbox
	_ = b.decode(&asked, false) // was understood before
	return sandboxKey + asked.Name
}

func keyOfSandbox(r *http.Request, _ *body) string { return sandboxKey + r.PathValue("name") }

// sandboxKey begins the keys of sandboxes. No ID has a slash.
const sandboxKey = "sandbox/"

// destroySandbox leaves alone what an allocation lives in. The client may say where
// it thinks that the directory of the sandboxes is.
func (a *API) destroySandbox(r *http.Request, _ *body) (work, error) {
	name, dir := r.PathValue("name"), r.URL.Query().Get("dir")
	return func(ctx context.Context) (any, error) {
		path := a.options.Sandboxes.Path(name)
		if dir != "" && filepath.Clean(dir) != filepath.Dir(path) {
			return nil, fmt.Errorf("destroy sandbox %q: its directory is %q, not %q: %w", name, filepath.Dir(path), dir, fs.ErrNotExist)
		}
		records, _ := a.options.Service().List(ctx) // of what cannot be read, nobody knows
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for i := range records {
			if sameSandbox(records[i].Netns, path) {
				return nil, fmt.Errorf("destroy sandbox %q: %w", name, &configurator.NetnsError{Netns: path, OtherID: records[i].ID})
			}
		}
		return nil, a.options.Sandboxes.Destroy(name)
	}, nil
}

// sameSandbox reports whether two paths are those of one namespace.
func sameSandbox(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	one, err1 := os.Stat(a)
	other, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(one, other)
}

// Pooled makes sandboxes from a pool, whose directory is dir.
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
