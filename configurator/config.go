package configurator

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/sandbox"
)

// Config configures a Configurator: where it finds networks and plugins, and how it runs
// them. The zero value is valid; it selects the default network of the host.
type Config struct {
	// Network is the name of the network. "" is the default network: that of the first
	// valid file in ConfDir.
	Network string
	// Networks are the names of several networks, in order. They are an alternative to
	// Network. The first is the primary network: its interface is eth0, that of the next
	// one eth1. A network whose only plugin is loopback is not numbered: its interface is
	// lo.
	Networks []string
	// ConfDir is the directory of the network configuration lists; default /etc/cni/net.d.
	ConfDir string
	// PluginDirs are searched for plugin binaries, in order; default $CNI_PATH or, if that
	// is empty, /opt/cni/bin, /usr/lib/cni and /usr/libexec/cni.
	PluginDirs []string
	// VendorDir is a directory in which vendors install plugins: a plugin of type T is
	// searched in VendorDir/opt/T/bin before the PluginDirs. "" means none.
	VendorDir string
	// InterfacePrefix is the name of interfaces without the number; default "eth".
	InterfacePrefix string
	// IgnorePortMappingHostIP publishes every port on all addresses of the host.
	IgnorePortMappingHostIP bool
	// AllowUnserved accepts allocations that request capabilities which no plugin of their
	// networks declares. It is for schedulers that always send ports. Such requests have no
	// effect: ports are not reserved, and Status and Record list the capabilities as
	// Unserved. A network policy that not all networks enforce is refused all the same.
	// By default, Setup returns an *UnservedError.
	AllowUnserved bool
	// Listeners selects what Setup does if a process of the host already listens on a
	// requested host port, over TCP or UDP. Once the port is published, its packets go to
	// the allocation instead. Default ListenerWarn.
	Listeners ListenerPolicy
	// DynamicPorts are the host ports that Setup and Update pick for ports without a number;
	// default DefaultDynamicPorts. Setups with given numbers may use them as well.
	DynamicPorts PortRange
	// RepairOnCheck makes Check repair an unhealthy network as Repair does. Check then
	// returns ErrUnhealthy only if the repair does not help. The daemon sets it.
	RepairOnCheck bool
	// StateDir is the directory of the records; default /run/allocnet. It should be on
	// tmpfs, because the state in the kernel does not survive a reboot either. Programs
	// with the same directory share its allocations. New resolves the path, so different
	// paths may lead to the same directory. Only root and the user of the process may have
	// write access to it; otherwise every operation returns ErrStateDir.
	StateDir string
	// NetnsDir is the directory in which Setup creates, and Teardown and GC destroy, the
	// network namespaces of allocations with OwnNetns; default sandbox.DefaultDir.
	NetnsDir string
	// Subnets are the subnets of the embedded network "allocnet", at most one per
	// address family. By default, the first Setup in the network chooses one of each family in which the host
	// has nothing, and StateDir keeps them: 10.202.0.0/16, 10.203.0.0/16, 172.29.0.0/16 or
	// 192.168.224.0/20, and fd0a:110c:2e7::/64 or fd0a:110c:2e7:1::/64.
	Subnets []netip.Prefix
	// SubnetsFrom is the path of the file in which flanneld writes the subnets of the host
	// (/run/flannel/subnet.env), in place of Subnets. The embedded network then spans all
	// hosts on which flanneld runs. While there is no such file, Setup and Ready return the
	// CNI error 50.
	SubnetsFrom string
	// Routes selects the routes of the embedded network for routing daemons; default none.
	Routes Routes
	// Policy is the network policy of all allocations in the embedded network, besides that
	// of each allocation: a packet must be allowed by both. An allocation keeps the policy with
	// which it was set up. Default are the presets no-host and published-only: allocations reach
	// their own network and what is outside the host, and are reached from their own network, from
	// the host, and at their host ports. With SubnetsFrom or Routes, which connect several hosts,
	// it is no-host alone. An empty policy allows everything, and is the default with EngineExec,
	// which cannot enforce another one. Other networks have theirs in the configuration of the
	// plugin policy.
	Policy *policy.Policy
	// Engine runs the plugins; default EngineAuto.
	Engine Engine
	// OneShot means that the process ends after one operation. Otherwise, the process keeps
	// the guard of the host's loopback until Close: allocations then cannot reach
	// 127.0.0.0/8 of the host even if another program flushes the ruleset. To release the
	// guard takes the kernel about 10 ms.
	OneShot bool
	// Backlog is the maximum number of allocations that are disconnected and not yet
	// deleted; see Configurator.Teardown. 0 is DefaultBacklog. With a negative number, or
	// with OneShot, Teardown always waits for the deletion.
	Backlog int
	// Pools are the networks for which the Configurator prepares network namespaces in
	// the background, from New to Close. A Setup with OwnNetns takes one if it requests
	// nothing but the network and host ports; see Pool. With OneShot there are none.
	Pools []Pool
	// Retry configures the attempts of an ADD.
	Retry RetryPolicy
	// Timeout bounds one run of all plugins of an allocation (an ADD, a CHECK or a DEL),
	// and each search for what they left, in addition to the context; default 1 minute.
	Timeout time.Duration
	// OnForced is called with the leftovers that DEL did not remove and that the
	// Configurator removed itself. It may be called concurrently, and must not call the
	// Configurator. Default none; the Logger logs the leftovers in any case.
	OnForced func(id string, removed []Leftover)
	// Observer is called for every operation and its steps, except CheckAll, CheckAndRepair, Restore,
	// Force and Audit; default none.
	Observer Observer
	// Journal is the maximum size in bytes of the journal below StateDir, from which
	// History reads; 0 for none. Programs with the same StateDir append to the same one.
	// An operation takes some 20 microseconds longer with it.
	Journal int64
	// Logger gets warnings about retries and forced removals, and at level debug a line for
	// each successful operation; default none. FromSlog adapts a *slog.Logger.
	Logger hclog.Logger
}

// Routes are routes that a routing daemon of the host, such as BIRD, announces to other hosts:
// one to each address of the embedded network. The last plugin of the network, "routes", writes
// them. With EngineExec it has to be installed as a binary, because it is no reference plugin;
// otherwise Setup and Ready return ErrPluginNotInstalled.
type Routes struct {
	// Table is the number of the routing table from which the daemon reads; 0 for no routes.
	// It must not be one in which the host looks for its own routes (253 to 255).
	Table uint32
	// Protocol is the number that tells the routes from those of other programs; default 91.
	// It must not be one of the kernel (1, 2), of administrators (3, 4) or of a routing daemon.
	Protocol uint8
	// Subnets announces the subnet of the network instead of each address, while the network
	// has allocations.
	Subnets bool
	// Cluster are the networks from which all hosts have their subnets. The embedded network
	// does not masquerade towards them, so that allocations of other hosts see the addresses
	// of allocations. The reference plugin ptp, which EngineExec may run, masquerades all the
	// same. New refuses it with SubnetsFrom, whose file names the networks; default none.
	Cluster []netip.Prefix
}

// ListenerPolicy selects what Setup does if processes of the host listen on host ports of an
// allocation.
type ListenerPolicy string

const (
	// ListenerWarn logs the processes and lists them in Status.Warnings. It is the default.
	ListenerWarn ListenerPolicy = "warn"
	// ListenerRefuse makes Setup return a *ListenerError for each process before it changes
	// anything. It considers listeners of both address families, even if the networks assign
	// addresses of only one.
	ListenerRefuse ListenerPolicy = "refuse"
	// ListenerIgnore does not search for such processes.
	ListenerIgnore ListenerPolicy = "ignore"
)

// RetryPolicy bounds the attempts of one Setup. Setup does not retry after permanent errors;
// see Configurator.Setup.
type RetryPolicy struct {
	// Attempts is the maximum number of ADDs; default 3.
	Attempts int
	// Delay is the wait between two attempts. A random duration of up to Jitter is added.
	// For both, 0 means the default of one second, and a negative value means none.
	Delay, Jitter time.Duration
}

// Defaults of the Config.
const (
	DefaultConfDir         = "/etc/cni/net.d"
	DefaultStateDir        = names.DefaultStateDir
	DefaultInterfacePrefix = "eth"
	DefaultTimeout         = time.Minute
	// DefaultJournal is the Journal of allocnet's programs: some 15,000 operations.
	DefaultJournal = 8 << 20
)

// DefaultPluginDirs returns the directories that are searched for plugins if the Config has
// none.
func DefaultPluginDirs() []string {
	if path := os.Getenv("CNI_PATH"); path != "" {
		return filepath.SplitList(path)
	}
	return []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"}
}

// withDefaults returns the Config with defaults for all empty fields.
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
	if c.DynamicPorts == (PortRange{}) {
		c.DynamicPorts = DefaultDynamicPorts
	}
	switch {
	case c.OneShot || c.Backlog < 0:
		c.Backlog = 0
	case c.Backlog == 0:
		c.Backlog = DefaultBacklog
	}
	if c.OneShot {
		c.Pools = nil
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

// complete returns the Config with its defaults, or an error for each invalid value.
func (c Config) complete() (Config, error) {
	if c.Network != "" && len(c.Networks) > 0 {
		return c, fmt.Errorf("%w: Network %q and Networks %q: give either Network or Networks", ErrInvalidConfig, c.Network, c.Networks)
	}
	c = c.withDefaults()
	return c, c.validate()
}

// validate joins the errors of a Config that has its defaults.
func (c Config) validate() error {
	var errs []error
	bad := func(field string, value any, why string) {
		errs = append(errs, fmt.Errorf("%w: %s %q: %s", ErrInvalidConfig, field, value, why))
	}
	for field, dir := range map[string]string{"ConfDir": c.ConfDir, "StateDir": c.StateDir, "NetnsDir": c.NetnsDir} {
		if !filepath.IsAbs(dir) {
			bad(field, dir, "must be an absolute path")
		}
	}
	if err := names.ValidateNewInterface(c.InterfacePrefix + "00"); err != nil {
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
	if !c.DynamicPorts.valid() {
		bad("DynamicPorts", c.DynamicPorts, "must be a range of ports from 1 to 65535")
	}
	if c.Timeout < 0 {
		bad("Timeout", c.Timeout, "must not be negative")
	}
	for i, name := range c.Networks {
		if slices.Contains(c.Networks[:i], name) {
			bad("Networks", name, "occurs twice")
		}
	}
	for i, p := range c.Pools {
		if p.Size < 0 || p.Size > MaxPool {
			bad("Pools", p.Network, fmt.Sprintf("Size %d must be between 0 and %d", p.Size, MaxPool))
		}
		if slices.ContainsFunc(c.Pools[:i], func(other Pool) bool { return other.Network == p.Network }) {
			bad("Pools", p.Network, "occurs twice")
		}
	}
	if c.Journal < 0 {
		bad("Journal", fmt.Sprint(c.Journal), "must not be negative")
	}
	if c.Retry.Attempts < 0 {
		bad("Retry.Attempts", fmt.Sprint(c.Retry.Attempts), "must not be negative")
	}
	return errors.Join(errs...)
}

// PortRange is a range of host ports, including both ends.
type PortRange struct{ First, Last int }

// DefaultDynamicPorts is the range of host ports that are picked for ports without a number. It
// ends before the range from which Linux takes ports for outgoing connections
// (net.ipv4.ip_local_port_range, 32768 to 60999).
var DefaultDynamicPorts = PortRange{20000, 32000}

// ParsePortRange reads a range as "20000-32000".
func ParsePortRange(text string) (PortRange, error) {
	first, last, found := strings.Cut(text, "-")
	var r PortRange
	var errs [2]error
	r.First, errs[0] = strconv.Atoi(first)
	r.Last, errs[1] = strconv.Atoi(last)
	if !found || errors.Join(errs[:]...) != nil || !r.valid() {
		return PortRange{}, fmt.Errorf("%q is not a range of ports: write it as 20000-32000", text)
	}
	return r, nil
}

// String returns the range as ParsePortRange reads it.
func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

func (r PortRange) valid() bool { return 1 <= r.First && r.First <= r.Last && r.Last <= 65535 }
