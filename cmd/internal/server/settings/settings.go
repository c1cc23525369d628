package settings

import (
	"io/fs"
	"net/netip"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/sandbox"
)

// Settings are all settings of the daemon. They are a value: whoever has a copy
// may change it, but for the slices.
type Settings struct {
	Socket                  Socket
	ConfDir                 string
	PluginDirs              []string
	VendorDir               string // "" for none
	StateDir                string
	Engine                  configurator.Engine
	Networks                []string // none: the default network of ConfDir
	InterfacePrefix         string
	Subnets                 []netip.Prefix // of the embedded network
	IgnorePortMappingHostIP bool
	AllowUnserved           bool // requests that no plugin serves
	HostListeners           configurator.ListenerPolicy
	RepairOnCheck           bool          // what a CHECK finds missing on the host
	AllowConflists          bool          // of callers other than root
	Timeout                 time.Duration // of one run of all plugins of an allocation
	Retry                   Retry
	Limits                  Limits
	Reconcile               Reconcile
	ShutdownGrace           time.Duration // for what runs when the daemon is told to end
	Pool                    Pool
	Manager                 Manager
	Log                     Log
	Telemetry               Telemetry
}

// Socket is where the daemon listens, where systemd does not pass it a socket.
type Socket struct {
	Path         string
	Owner, Group string // names or numbers; "" for those of the process
	Mode         fs.FileMode
}

// Retry is how a failed ADD is tried again.
type Retry struct {
	Attempts      int
	Delay, Jitter time.Duration // none if 0
}

// Limits are what the daemon bears.
type Limits struct {
	Operations       int           // at once
	Queue            int           // operations that wait for their turn
	PerAllocation    int           // operations on one allocation, of which one runs
	Streams          int           // of events
	Connections      int           // of clients
	Body             int64         // bytes of one request
	HeaderTimeout    time.Duration // for the header of a request
	OperationTimeout time.Duration // for an operation on one allocation, with its time in the queue
}

// ReconcileMode is what is done about records that do not agree with the kernel.
type ReconcileMode string

const (
	// ReconcileRepair puts back what is missing, and takes down what was left
	// unfinished.
	ReconcileRepair ReconcileMode = "repair"
	// ReconcileReport changes nothing, and logs what it finds.
	ReconcileReport ReconcileMode = "report"
)

// Reconcile is how records are compared with the kernel.
type Reconcile struct {
	Mode      ReconcileMode // when the daemon starts
	Wait      time.Duration // after which the daemon is ready all the same
	NetnsGone time.Duration // after which what runtimes attached there is torn down; never if 0
}

// Pool is the pool of network namespaces that are made ahead.
type Pool struct {
	Size int    // none if 0
	Dir  string // where namespaces get their names, those without the pool as well
}

// Manager is the manager of the CNI configuration.
type Manager struct {
	Enabled       bool
	Primary       string // name of the network that is delegated to; "" for the first one
	Name          string // of the own network; "" takes over the primary's
	OwnFile       string // file name in ConfDir
	ReadinessFile string // "" for none
}

// Log is what the daemon logs, to stderr.
type Log struct {
	Level hclog.Level
	JSON  bool
}

// Telemetry is where spans go.
type Telemetry struct {
	OTLPEndpoint string // URL; "" for none
}

// Default returns what holds where nothing else is said.
func Default() Settings {
	return Settings{
		Socket:          Socket{Path: "/run/allocnet/allocnetd.sock", Mode: 0o660},
		ConfDir:         configurator.DefaultConfDir,
		PluginDirs:      []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"},
		StateDir:        configurator.DefaultStateDir,
		Engine:          configurator.EngineAuto,
		InterfacePrefix: configurator.DefaultInterfacePrefix,
		Subnets:         []netip.Prefix{netip.MustParsePrefix("10.202.0.0/16"), netip.MustParsePrefix("fd0a:110c:2e7::/64")},
		HostListeners:   configurator.ListenerWarn,
		RepairOnCheck:   true,
		Timeout:         configurator.DefaultTimeout,
		Retry:           Retry{Attempts: 3, Delay: time.Second, Jitter: time.Second},
		Limits: Limits{
			Operations: 32, Queue: 1024, PerAllocation: 16, Streams: 64, Connections: 2048, Body: 1 << 20,
			HeaderTimeout: 5 * time.Second, OperationTimeout: 2 * time.Minute,
		},
		Reconcile:     Reconcile{Mode: ReconcileRepair, Wait: 30 * time.Second, NetnsGone: 5 * time.Minute},
		ShutdownGrace: 30 * time.Second,
		Pool:          Pool{Dir: sandbox.DefaultDir},
		Manager:       Manager{OwnFile: "00-allocnet.conflist"},
		Log:           Log{Level: hclog.Info},
	}
}

// Configurator is the part of the settings that a configurator has.
func (s *Settings) Configurator() configurator.Config {
	return configurator.Config{
		Networks: s.Networks, ConfDir: s.ConfDir, PluginDirs: s.PluginDirs, VendorDir: s.VendorDir,
		InterfacePrefix: s.InterfacePrefix, IgnorePortMappingHostIP: s.IgnorePortMappingHostIP, AllowUnserved: s.AllowUnserved, RepairOnCheck: s.RepairOnCheck,
		Listeners: s.HostListeners,
		StateDir:  s.StateDir, NetnsDir: s.Pool.Dir, Subnets: s.Subnets, Engine: s.Engine, Timeout: s.Timeout,
		Retry: configurator.RetryPolicy{
			Attempts: s.Retry.Attempts, Delay: orNone(s.Retry.Delay), Jitter: orNone(s.Retry.Jitter),
		},
	}
}

// orNone says "none" as the configurator understands it, for which 0 is its
// default.
func orNone(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}
