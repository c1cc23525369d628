package api

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/allocnet/allocnet/internal/api/strict"
	"github.com/allocnet/allocnet/internal/api/wire"
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
		if err != nil {
			return nil, err
		}
		return wire.Sandbox{Path: path}, nil
	}, err
}

func (a *API) destroySandbox(r *http.Request, _ *body) (work, error) {
	return func(context.Context) (any, error) {
		return nil, a.options.Sandboxes.Destroy(r.PathValue("name"))
	}, nil
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

func (p pooled) Destroy(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("destroy sandbox %q: %w", name, sandbox.ErrInvalidName)
	}
	return sandbox.Destroy(filepath.Join(p.dir, name))
}
