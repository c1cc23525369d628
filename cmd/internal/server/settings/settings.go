package settings

import (
	"io/fs"
	"net/netip"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/netlink/announce"
	"github.com/allocnet/allocnet/internal/netlink/watch"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/sandbox"
)

// Settings are all settings of the daemon. Copies share the slices.
type Settings struct {
	Socket                  Socket
	ConfDir                 string
	PluginDirs              []string
	VendorDir               string // "" for none
	StateDir                string
	Engine                  configurator.Engine
	Networks                []string // empty: the default network of ConfDir
	InterfacePrefix         string
	Subnets                 []netip.Prefix // of the embedded network
	SubnetsFrom             string         // file with the subnets of the embedded network; "" for Subnets
	Routes                  Routes
	Policy                  Policy // of the embedded network
	IgnorePortMappingHostIP bool
	AllowUnserved           bool // accept requests that no plugin serves
	HostListeners           configurator.ListenerPolicy
	DynamicPorts            configurator.PortRange
	RepairOnCheck           bool          // a CHECK restores what is missing on the host
	AllowConflists          bool          // accept configurations of callers other than root
	Timeout                 time.Duration // for one run of all plugins of an allocation
	Retry                   Retry
	Limits                  Limits
	Reconcile               Reconcile
	Heal                    Heal
	History                 History
	ShutdownGrace           time.Duration // for running operations at shutdown
	Pool                    Pool
	Manager                 Manager
	Log                     Log
	Telemetry               Telemetry
	Metrics                 Metrics
	UI                      string // ADDRESS:PORT of the page; "" for none
}

// Socket is the socket that the daemon creates if systemd does not pass one.
type Socket struct {
	Path         string
	Owner, Group string // names or numbers; "" for those of the process
	Mode         fs.FileMode
}

// Routes are the routes of the embedded network for routing daemons.
type Routes struct {
	Table    uint32 // 0 for none
	Protocol uint8
	Subnets  bool           // to the subnet in place of each address
	Cluster  []netip.Prefix // networks of all hosts, not masqueraded
}

// Policy is a network policy.
type Policy struct {
	Sources []string // presets, or the absolute path of one file; empty for none
	// Policy is what the Sources contained when the settings were loaded; nil for the default
	// of configurator.Config.
	Policy *policy.Policy
}

// Retry configures the repetition of a failed ADD.
type Retry struct {
	Attempts      int
	Delay, Jitter time.Duration // none if 0
}

// Limits bound the load that clients can cause.
type Limits struct {
	Operations       int           // concurrent operations
	Queue            int           // waiting operations
	PerAllocation    int           // operations on one allocation: one running, the others waiting
	Streams          int           // concurrent streams of events
	Connections      int           // concurrent connections
	Body             int64         // bytes of one request's body
	OperationTimeout time.Duration // for an operation on one allocation, including the wait
}

// ReconcileMode is the action of the daemon if records and kernel do not agree.
type ReconcileMode string

const (
	// ReconcileRepair restores what is missing and removes unfinished allocations.
	ReconcileRepair ReconcileMode = "repair"
	// ReconcileReport changes nothing and logs the differences. It also disables Heal.
	ReconcileReport ReconcileMode = "report"
)

// Reconcile configures the comparison of records with the kernel.
type Reconcile struct {
	Mode      ReconcileMode // at the start of the daemon
	Wait      time.Duration // the daemon is ready after this time at the latest
	NetnsGone time.Duration // after which allocations of runtimes without a namespace are torn down; 0 for never
}

// Heal configures the repair of what other programs remove while the daemon runs.
type Heal struct {
	Enabled bool
	// CheckInterval is the time in which every allocation is checked once in the
	// background; 0 for never.
	CheckInterval time.Duration
	// ReceiveBuffer is the size in bytes of a buffer for notifications of the kernel.
	ReceiveBuffer int64
}

// Pool is the pool of prepared network namespaces, and those of each network.
type Pool struct {
	Size     int    // 0 for none
	Dir      string // directory of all network namespaces, also without a pool
	Networks []configurator.Pool
}

// History configures the journal of operations.
type History struct {
	Size int64 // maximum size in bytes; 0 for none
}

// Manager configures the manager of the CNI configuration.
type Manager struct {
	Enabled       bool
	Primary       string // name of the network that it delegates to; "" for the first one
	Name          string // name of its own network; "" for the primary network's name
	OwnFile       string // file name in ConfDir
	ReadinessFile string // "" for none

	LabelsFrom     []LabelSource
	PolicyFrom     string // name of one of CNI_ARGS; "" for none
	PodAnnotations bool   // read labels and policies from the annotations of pods
}

// LabelSource is a label whose value is one of CNI_ARGS.
type LabelSource struct{ Key, Argument string }

// Log configures the log on stderr.
type Log struct {
	Level hclog.Level
	JSON  bool
}

// Telemetry configures the export of spans.
type Telemetry struct {
	OTLPEndpoint string // URL; "" for none
}

// Metrics configures the TCP listener for metrics and probes.
type Metrics struct {
	Listen    string // ADDRESS:PORT, or :PORT for all addresses; "" for none
	WebConfig string // file with TLS, client certificates and users; "" for none
}

// Default returns the defaults of all settings.
func Default() Settings {
	return Settings{
		Socket:          Socket{Path: "/run/allocnet/allocnetd.sock", Mode: 0o660},
		ConfDir:         configurator.DefaultConfDir,
		PluginDirs:      []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"},
		StateDir:        configurator.DefaultStateDir,
		Engine:          configurator.EngineAuto,
		InterfacePrefix: configurator.DefaultInterfacePrefix,
		Routes:          Routes{Protocol: announce.DefaultProtocol},
		HostListeners:   configurator.ListenerWarn,
		DynamicPorts:    configurator.DefaultDynamicPorts,
		RepairOnCheck:   true,
		Timeout:         configurator.DefaultTimeout,
		Retry:           Retry{Attempts: 3, Delay: time.Second, Jitter: time.Second},
		Limits: Limits{
			Operations: 32, Queue: 1024, PerAllocation: 16, Streams: 64, Connections: 2048, Body: 1 << 20,
			OperationTimeout: 2 * time.Minute,
		},
		Reconcile:     Reconcile{Mode: ReconcileRepair, Wait: 30 * time.Second, NetnsGone: 5 * time.Minute},
		Heal:          Heal{Enabled: true, CheckInterval: 10 * time.Minute, ReceiveBuffer: watch.DefaultBuffer},
		History:       History{Size: configurator.DefaultJournal},
		ShutdownGrace: 30 * time.Second,
		Pool:          Pool{Dir: sandbox.DefaultDir},
		Manager:       Manager{OwnFile: "00-allocnet.conflist"},
		Log:           Log{Level: hclog.Info},
	}
}

// Configurator returns the configuration of a configurator with these settings.
func (s *Settings) Configurator() configurator.Config {
	subnets := s.Subnets
	if s.SubnetsFrom != "" {
		subnets = nil
	}
	return configurator.Config{
		Networks: s.Networks, ConfDir: s.ConfDir, PluginDirs: s.PluginDirs, VendorDir: s.VendorDir,
		InterfacePrefix: s.InterfacePrefix, IgnorePortMappingHostIP: s.IgnorePortMappingHostIP, AllowUnserved: s.AllowUnserved, RepairOnCheck: s.RepairOnCheck,
		Listeners: s.HostListeners, DynamicPorts: s.DynamicPorts,
		StateDir: s.StateDir, NetnsDir: s.Pool.Dir, Subnets: subnets, SubnetsFrom: s.SubnetsFrom, Routes: configurator.Routes(s.Routes), Policy: s.Policy.Policy, Engine: s.Engine, Timeout: s.Timeout, Pools: s.Pool.Networks, Journal: s.History.Size,
		Retry: configurator.RetryPolicy{
			Attempts: s.Retry.Attempts, Delay: orNone(s.Retry.Delay), Jitter: orNone(s.Retry.Jitter),
		},
	}
}

// orNone replaces 0 by the configurator's value for "none", because 0 stands for its
// default.
func orNone(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}
