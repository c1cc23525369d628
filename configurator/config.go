package configurator

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/sandbox"
)

// Config says where networks and plugins are found and how they are run. The
// zero value is the host's default network with the defaults given here.
type Config struct {
	// Network is the name of the network; "" is the default network of
	// ConfDir: that of the first valid file.
	Network string
	// Networks are several networks, in order, in place of Network. The first
	// is the primary one: its interface is eth0, the next one's eth1. A network
	// whose only plugin is loopback is not counted: its interface is lo.
	Networks []string
	// ConfDir holds the conflists; default /etc/cni/net.d.
	ConfDir string
	// PluginDirs are searched for plugins, in order; default $CNI_PATH, else
	// /opt/cni/bin, /usr/lib/cni and /usr/libexec/cni.
	PluginDirs []string
	// VendorDir is a prefix under which vendors install plugins: a plugin of
	// type T is first looked for in VendorDir/opt/T/bin. "" for none.
	VendorDir string
	// InterfacePrefix and a number name the interfaces; default "eth".
	InterfacePrefix string
	// IgnorePortMappingHostIP publishes every port on all addresses of the host.
	IgnorePortMappingHostIP bool
	// AllowUnserved accepts allocations that request capabilities which no plugin
	// of their networks declares. It is for schedulers that always send ports. The
	// requests have no effect: their ports are not reserved, and Status and Record
	// name them as Unserved. By default they are an *UnservedError.
	AllowUnserved bool
	// Listeners says what Setup does about a host port on which a process of the host
	// listens already, over TCP or UDP: from then on what is sent there goes to the
	// allocation. Default ListenerWarn.
	Listeners ListenerPolicy
	// RepairOnCheck has Check restore what Repair can, where it finds the network
	// unhealthy, and find ErrUnhealthy only where that does not help. The daemon has
	// it on.
	RepairOnCheck bool
	// StateDir holds the records. It should be on tmpfs, as the kernel's state
	// does not survive a reboot either; default /run/allocnet. All who use one
	// directory are one user of the host, whichever path leads them there; New
	// finds out where it leads. Only the process's user and root may be able to
	// write to it: otherwise every operation fails, and says what to change.
	StateDir string
	// NetnsDir is where Setup makes the network namespaces of allocations that have
	// their own, and Teardown and GC destroy them; default sandbox.DefaultDir.
	NetnsDir string
	// Subnets are those of the embedded network "allocnet", at most one per
	// family; default 10.202.0.0/16 and fd0a:110c:2e7::/64.
	Subnets []netip.Prefix
	// Engine runs the plugins; default EngineAuto.
	Engine Engine
	// OneShot says that the process ends after an operation. Otherwise it holds the
	// guard of the host's loopback as long as it runs, so that 127.0.0.0/8 stays
	// closed to allocations when another program flushes the ruleset; to let go of it
	// at the end takes the kernel some 10 ms.
	OneShot bool
	// Retry is how an ADD is tried again.
	Retry RetryPolicy
	// Timeout bounds one run of all plugins of an allocation (an ADD, a CHECK
	// or a DEL), where the context does not do so earlier; default 1 minute.
	Timeout time.Duration
	// OnForced is called with what had to be removed by force, because DEL did
	// not. It may be called from several goroutines at once and must not call
	// the Configurator. Default none; the Logger is told in any case.
	OnForced func(id string, removed []Leftover)
	// Observer is told of every operation and its steps; default none.
	Observer Observer
	// Logger gets warnings about retries and forced cleanups, and at debug a line for
	// each operation that succeeded; default none. FromSlog makes one of a *slog.Logger.
	Logger hclog.Logger
}

// ListenerPolicy is what Setup does about processes of the host that listen on host ports
// of an allocation.
type ListenerPolicy string

const (
	// ListenerWarn is the zero value's meaning: Setup logs them, and the Status has them
	// as Warnings.
	ListenerWarn ListenerPolicy = "warn"
	// ListenerRefuse has Setup return a *ListenerError for each, before anything is done,
	// whatever families of addresses the networks have.
	ListenerRefuse ListenerPolicy = "refuse"
	// ListenerIgnore does not look for them.
	ListenerIgnore ListenerPolicy = "ignore"
)

// RetryPolicy bounds the attempts of one Setup. Only errors that can pass are
// tried again; see Setup.
type RetryPolicy struct {
	// Attempts is how often ADD is tried at most; default 3.
	Attempts int
	// Delay is the wait between two attempts, to which a random part of up to
	// Jitter is added. 0 means the default of one second each, less means none.
	Delay, Jitter time.Duration
}

// Defaults of the Config.
const (
	DefaultConfDir         = "/etc/cni/net.d"
	DefaultStateDir        = names.DefaultStateDir
	DefaultInterfacePrefix = "eth"
	DefaultTimeout         = time.Minute
)

// DefaultPluginDirs are the directories that are searched for plugins where the
// Config names none.
func DefaultPluginDirs() []string {
	if path := os.Getenv("CNI_PATH"); path != "" {
		return filepath.SplitList(path)
	}
	return []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"}
}

// withDefaults fills in what the caller left open.
func (c Config) withDefaults() Config {
	if len(c.Networks) == 0 {
		c.Networks = []string{c.Network}
	}
	if len(c.PluginDirs) == 0 {
		c.PluginDirs = DefaultPluginDirs()
	}
	orString(&c.ConfDir, DefaultConfDir)
	orString(&c.StateDir, DefaultStateDir)
	orString(&c.NetnsDir, sandbox.DefaultDir)
	orString(&c.InterfacePrefix, DefaultInterfacePrefix)
	if c.Engine == "" {
		c.Engine = EngineAuto
	}
	if c.Listeners == "" {
		c.Listeners = ListenerWarn
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.OnForced == nil {
		c.OnForced = func(string, []Leftover) {}
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	c.Retry = c.Retry.withDefaults()
	return c
}

func (r RetryPolicy) withDefaults() RetryPolicy {
	if r.Attempts == 0 {
		r.Attempts = 3
	}
	for _, d := range []*time.Duration{&r.Delay, &r.Jitter} {
		switch {
		case *d == 0:
			*d = time.Second
		case *d < 0:
			*d = 0
		}
	}
	return r
}

func orString(s *string, otherwise string) {
	if *s == "" {
		*s = otherwise
	}
}

// validate finds what is wrong with a configuration that has its defaults.
func (c Config) validate() error {
	var errs []error
	bad := func(field string, value any, why string) {
		errs = append(errs, fmt.Errorf("%w: %s %q: %s", ErrInvalidConfig, field, value, why))
	}
	for field, dir := range map[string]string{"ConfDir": c.ConfDir, "StateDir": c.StateDir} {
		if !filepath.IsAbs(dir) {
			bad(field, dir, "must be an absolute path")
		}
	}
	if err := names.ValidateInterface(c.InterfacePrefix + "00"); err != nil {
		bad("InterfacePrefix", c.InterfacePrefix, err.Error())
	}
	switch c.Engine {
	case EngineAuto, EngineExec, EngineNative:
	default:
		bad("Engine", c.Engine, "must be auto, exec or native")
	}
	switch c.Listeners {
	case ListenerWarn, ListenerRefuse, ListenerIgnore:
	default:
		bad("Listeners", c.Listeners, "must be warn, refuse or ignore")
	}
	if c.Timeout < 0 {
		bad("Timeout", c.Timeout, "must not be negative")
	}
	if c.Retry.Attempts < 0 {
		bad("Retry.Attempts", fmt.Sprint(c.Retry.Attempts), "must not be negative")
	}
	return errors.Join(errs...)
}
