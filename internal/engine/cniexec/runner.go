package cniexec

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"unsafe"

	gocni "github.com/containerd/go-cni"
	"github.com/containernetworking/cni/libcni"
	"go.opentelemetry.io/otel/propagation"

	"github.com/allocnet/allocnet/internal/pluginexec"
)

// runner runs the plugins of go-cni. Its own starts them in the process group of the
// embedding process, which a plugin that kills its group would end.
type runner struct{ pluginexec.Exec }

// ExecPlugin tells plugins of the span that they run in, as libcni's own runner does.
func (r *runner) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	span := propagation.MapCarrier{}
	propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}).Inject(ctx, span)
	for key, value := range span {
		environ = append(environ, strings.ToUpper(key)+"="+value)
	}
	return r.Exec.ExecPlugin(ctx, path, stdin, environ)
}

// TakesRunner reports whether the go-cni of this build can be given our runner.
var TakesRunner = sync.OnceValue(func() bool {
	_, err := gocni.New(withRunner(nil))
	return err == nil
})

// withRunner is WithPluginDir with our runner in the place of go-cni's. No option of
// go-cni does that, so it sets the field that WithPluginDir sets.
func withRunner(dirs []string) gocni.Opt {
	return likeOption(gocni.WithPluginDir(dirs), func(instance any) error {
		return setRunner(instance, libcni.NewCNIConfig(dirs, &runner{}))
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
