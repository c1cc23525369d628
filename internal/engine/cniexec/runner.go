package cniexec

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unsafe"

	gocni "github.com/containerd/go-cni"
	"github.com/containernetworking/cni/libcni"
	"go.opentelemetry.io/otel/propagation"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
)

// runner runs the plugins of go-cni. Its own starts them in the process group of the
// embedding process, which a plugin that kills its group would end.
type runner struct {
	pluginexec.Exec

	mu   sync.Mutex
	runs int   // of ADD, begun
	last error // of the last one that ended
}

// ExecPlugin tells plugins of the span that they run in, as libcni's own runner does.
func (r *runner) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	span := propagation.MapCarrier{}
	propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}).Inject(ctx, span)
	for key, value := range span {
		environ = append(environ, strings.ToUpper(key)+"="+value)
	}
	if slices.Contains(environ, "CNI_COMMAND=ADD") {
		return r.add(ctx, path, stdin, environ)
	}
	return r.Exec.ExecPlugin(ctx, path, stdin, environ)
}

// add runs ADD of one plugin, and keeps count.
func (r *runner) add(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	r.mu.Lock()
	r.runs++
	r.mu.Unlock()
	out, err := r.Exec.ExecPlugin(ctx, path, stdin, environ)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = err
	return out, err
}

// ended is the error of an ADD with the place at which it ended. go-cni adds
// networks one after the other, and libcni runs each of their plugins once.
func (r *runner) ended(req *engine.Request, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs == 0 {
		return fmt.Errorf("%w: %w", engine.ErrNothingDone, err)
	}
	plugin := r.runs - 1
	for i, a := range req.Attachments {
		if n := len(a.Network.List.Plugins); plugin >= n {
			plugin -= n
			continue
		}
		at := engine.Place{Attachment: i, Plugin: plugin}
		return &engine.AddError{Place: at, Unstarted: errors.Is(r.last, pluginexec.ErrNotStarted), Err: err}
	}
	return err
}

// TakesRunner reports whether the go-cni of this build can be given our runner.
var TakesRunner = sync.OnceValue(func() bool {
	_, err := gocni.New(withRunner(&runner{}, nil))
	return err == nil
})

// withRunner is WithPluginDir with our runner in the place of go-cni's. No option of
// go-cni does that, so it sets the field that WithPluginDir sets.
func withRunner(r *runner, dirs []string) gocni.Opt {
	return likeOption(gocni.WithPluginDir(dirs), func(instance any) error {
		return setRunner(instance, libcni.NewCNIConfig(dirs, r))
	})
}

// likeOption makes an option of set, whatever instances are that go-cni's own options
// work on.
func likeOption[T any](own func(T) error, set func(instance any) error) func(T) error {
	return func(instance T) error { return errors.Join(own(instance), set(instance)) }
}

var errNoRunner = errors.New("this go-cni has no place for a runner of plugins")

// setRunner sets the field of an instance that runs plugins, if it has the name and
// the type that it has in go-cni 1.1.
func setRunner(instance any, with libcni.CNI) error {
	v := reflect.Indirect(reflect.ValueOf(instance))
	if v.Kind() != reflect.Struct {
		return errNoRunner
	}
	field := v.FieldByName("cniConfig")
	if !field.IsValid() || !field.CanAddr() || field.Type() != reflect.TypeFor[libcni.CNI]() {
		return errNoRunner
	}
	*(*libcni.CNI)(unsafe.Pointer(field.UnsafeAddr())) = with
	return nil
}
