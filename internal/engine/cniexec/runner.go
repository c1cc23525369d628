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
	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"go.opentelemetry.io/otel/propagation"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
)

// runner runs plugins for go-cni. go-cni's own runner starts them in the process group
// of the embedding process, so a plugin that kills its group would end this process.
type runner struct {
	pluginexec.Exec
	request *engine.Request

	mu        sync.Mutex
	runs      int          // number of ADDs that were started
	last      error        // error of the last ADD that ended
	checked   engine.Place // of the next plugin in CHECK
	unchecked error        // of the networks without CHECK
}

// networks is libcni for go-cni. go-cni's Check ends at the first network whose CNI
// version has no CHECK; here it goes on to the next one, and the runner keeps the error.
type networks struct {
	*libcni.CNIConfig
	run *runner
}

// CheckNetworkList implements libcni.CNI.
func (n *networks) CheckNetworkList(ctx context.Context, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf) error {
	n.run.beginCheck(list.Name)
	err := n.CNIConfig.CheckNetworkList(ctx, list, rt)
	if !errors.Is(err, libcni.ErrorCheckNotSupp) {
		return err
	}
	n.run.mu.Lock()
	defer n.run.mu.Unlock()
	n.run.unchecked = errors.Join(n.run.unchecked, fmt.Errorf("network %q: %w", list.Name, err))
	return nil
}

// ExecPlugin passes the trace context to plugins in the environment, as libcni's own
// runner does.
func (r *runner) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	span := propagation.MapCarrier{}
	propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}).Inject(ctx, span)
	for key, value := range span {
		environ = append(environ, strings.ToUpper(key)+"="+value)
	}
	switch {
	case slices.Contains(environ, "CNI_COMMAND=ADD"):
		return r.add(ctx, path, stdin, environ)
	case slices.Contains(environ, "CNI_COMMAND=CHECK"):
		return r.check(ctx, path, stdin, environ)
	}
	return r.Exec.ExecPlugin(ctx, path, stdin, environ)
}

// beginCheck notes that the plugins of a network follow in CHECK.
func (r *runner) beginCheck(network string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := slices.IndexFunc(r.request.Attachments, func(a engine.Attachment) bool { return a.Network.Name == network })
	r.checked = engine.Place{Attachment: at}
}

// check runs CHECK of one plugin. libcni runs them in the order of the network.
func (r *runner) check(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	r.mu.Lock()
	at := r.checked
	r.checked.Plugin++
	r.mu.Unlock()
	out, err := r.Exec.ExecPlugin(ctx, path, stdin, environ)
	return out, r.request.Checked(at, true, err)
}

// add runs ADD of one plugin and counts it.
func (r *runner) add(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	r.mu.Lock()
	r.runs++
	r.mu.Unlock()
	out, err := r.Exec.ExecPlugin(ctx, path, stdin, environ)
	if err == nil {
		err = validate(ctx, path, stdin, out)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = err
	return out, err
}

// validate returns ErrInvalidResult if the output of an ADD is none that libcni can read. libcni's
// own error cannot be told from others.
func validate(ctx context.Context, path string, stdin, out []byte) error {
	result, err := invoke.ExecPluginWithResult(ctx, path, stdin, invoke.ArgsFromEnv(), &replay{out: out})
	if err == nil {
		_, err = types100.NewResultFromResult(result)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", engine.ErrInvalidResult, err)
	}
	return nil
}

// replay is a runner that returns what a plugin has written already.
type replay struct {
	pluginexec.Exec
	out []byte
}

// ExecPlugin implements invoke.Exec.
func (r *replay) ExecPlugin(context.Context, string, []byte, []string) ([]byte, error) {
	return r.out, nil
}

// ended adds to the error of an ADD the plugin that returned it. go-cni attaches
// networks one after the other, and libcni runs each of their plugins once, so the
// number of runs identifies the plugin.
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

// TakesRunner reports whether the runner of this package can be set in the go-cni of
// this build.
var TakesRunner = sync.OnceValue(func() bool {
	_, err := gocni.New(withRunner(&runner{}, nil))
	return err == nil
})

// withRunner is gocni.WithPluginDir with another runner. go-cni has no option for that,
// so withRunner sets the field that WithPluginDir sets.
func withRunner(r *runner, dirs []string) gocni.Opt {
	return likeOption(gocni.WithPluginDir(dirs), func(instance any) error {
		return setRunner(instance, &networks{libcni.NewCNIConfig(dirs, r), r})
	})
}

// likeOption returns an option that calls own and set. Its type parameter is the
// unexported instance type of go-cni's options.
func likeOption[T any](own func(T) error, set func(instance any) error) func(T) error {
	return func(instance T) error { return errors.Join(own(instance), set(instance)) }
}

var errNoRunner = errors.New("this version of go-cni does not allow another plugin runner")

// setRunner sets the cniConfig field of an instance. It returns an error if the field
// does not have the name and type of go-cni 1.1.
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
