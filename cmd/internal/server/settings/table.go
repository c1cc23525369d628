package settings

import (
	"strings"

	"github.com/allocnet/allocnet/configurator"
)

// setting is one line of the table.
type setting struct {
	block string // in the file; "" for its top level
	name  string
	usage string
	live  bool // a reload can change it
	in    func(*Settings) value
}

// key is what errors and reports call the setting.
func (s *setting) key() string {
	if s.block == "" {
		return s.name
	}
	return s.block + "." + s.name
}

func (s *setting) flag() string {
	return strings.NewReplacer(".", "-", "_", "-").Replace(s.key())
}

func (s *setting) variable() string {
	return Prefix + strings.ToUpper(strings.ReplaceAll(s.key(), ".", "_"))
}

// Prefix begins the names of the environment variables.
const Prefix = "ALLOCNETD_"

// table is every setting, in the order of the reference file.
var table = []setting{
	{"socket", "path", "unix socket to listen on", false,
		func(s *Settings) value { return textOf(&s.Socket.Path, socketPath) }},
	{"socket", "owner", "owner of the socket, a name or number (default that of the process)", false,
		func(s *Settings) value { return textOf(&s.Socket.Owner, anyText) }},
	{"socket", "group", "group of the socket, whose members may use the daemon, a name or number (default that of the process)", false,
		func(s *Settings) value { return textOf(&s.Socket.Group, anyText) }},
	{"socket", "mode", "permissions of the socket, octal", false,
		func(s *Settings) value { return modeOf(&s.Socket.Mode) }},

	{"", "conf_dir", "directory of the network configurations", true,
		func(s *Settings) value { return textOf(&s.ConfDir, absolutePath) }},
	{"", "plugin_dirs", "directories to search for plugins", true,
		func(s *Settings) value { return listOf(&s.PluginDirs, absolutePath, ":") }},
	{"", "vendor_dir", "prefix under which vendors install plugins: DIR/opt/TYPE/bin (default none)", true,
		func(s *Settings) value { return textOf(&s.VendorDir, optional(absolutePath)) }},
	{"", "state_dir", "directory of what is remembered; on tmpfs", false,
		func(s *Settings) value { return textOf(&s.StateDir, absolutePath) }},
	{"", "engine", "what runs the plugins: auto, exec (plugin binaries) or native (inside this process)", true,
		func(s *Settings) value {
			return textOf(&s.Engine, oneOf(configurator.EngineAuto, configurator.EngineExec, configurator.EngineNative))
		}},
	{"", "networks", "networks to attach to, the first one is eth0 (default the first one of conf_dir)", true,
		func(s *Settings) value { return listOf(&s.Networks, networkName, ",") }},
	{"", "interface_prefix", "what interface names begin with, before a number", true,
		func(s *Settings) value { return textOf(&s.InterfacePrefix, interfacePrefix) }},
	{"", "subnets", "subnets of the embedded network \"allocnet\", at most one per family", true,
		func(s *Settings) value { return prefixesOf(&s.Subnets) }},
	{"", "ignore_port_mapping_host_ip", "publish every port on all addresses of the host", true,
		func(s *Settings) value { return boolOf(&s.IgnorePortMappingHostIP) }},
	{"", "allow_unserved", "accept requests that no plugin of the networks serves, such as ports; they have no effect", true,
		func(s *Settings) value { return boolOf(&s.AllowUnserved) }},
	{"", "host_listeners", "what to do about a host port on which a process of the host listens: warn, refuse or ignore", true,
		func(s *Settings) value {
			return textOf(&s.HostListeners, oneOf(configurator.ListenerWarn, configurator.ListenerRefuse, configurator.ListenerIgnore))
		}},
	{"", "repair_on_check", "have a CHECK restore what is missing on the host, such as rules after a flush", true,
		func(s *Settings) value { return boolOf(&s.RepairOnCheck) }},
	{"", "allow_conflists", "run network configurations that requests of callers other than root bring along", false,
		func(s *Settings) value { return boolOf(&s.AllowConflists) }},
	{"", "timeout", "longest time for one run of all plugins of an allocation", true,
		func(s *Settings) value { return durationOf(&s.Timeout, 1) }},

	{"", "shutdown_grace", "how long what runs may go on when the daemon is told to end", true,
		func(s *Settings) value { return durationOf(&s.ShutdownGrace, 0) }},

	{"retry", "attempts", "how often an ADD is tried at most", true,
		func(s *Settings) value { return intOf(&s.Retry.Attempts, 1, 100) }},
	{"retry", "delay", "time between two attempts", true,
		func(s *Settings) value { return durationOf(&s.Retry.Delay, 0) }},
	{"retry", "jitter", "longest random time that is added to the delay", true,
		func(s *Settings) value { return durationOf(&s.Retry.Jitter, 0) }},

	{"limits", "operations", "operations at once", false,
		func(s *Settings) value { return intOf(&s.Limits.Operations, 1, 100_000) }},
	{"limits", "queue", "operations that wait for their turn; what comes beyond is refused", false,
		func(s *Settings) value { return intOf(&s.Limits.Queue, 1, 1_000_000) }},
	{"limits", "per_allocation", "operations on one allocation, of which one runs", false,
		func(s *Settings) value { return intOf(&s.Limits.PerAllocation, 1, 100_000) }},
	{"limits", "streams", "streams of events at once", false,
		func(s *Settings) value { return intOf(&s.Limits.Streams, 1, 100_000) }},
	{"limits", "connections", "connections of clients at once", false,
		func(s *Settings) value { return intOf(&s.Limits.Connections, 1, 1_000_000) }},
	{"limits", "body", "longest body of a request", false,
		func(s *Settings) value { return sizeOf(&s.Limits.Body, 1<<10, 64<<20) }},
	{"limits", "header_timeout", "longest time for the header of a request", false,
		func(s *Settings) value { return durationOf(&s.Limits.HeaderTimeout, 1) }},
	{"limits", "operation_timeout", "longest time for an operation on one allocation, with its time in the queue", false,
		func(s *Settings) value { return durationOf(&s.Limits.OperationTimeout, 1) }},

	{"reconcile", "mode", "what to do at the start about records that do not agree with the kernel: repair or report", false,
		func(s *Settings) value { return textOf(&s.Reconcile.Mode, oneOf(ReconcileRepair, ReconcileReport)) }},
	{"reconcile", "wait", "how long that may take until the daemon is ready all the same", false,
		func(s *Settings) value { return durationOf(&s.Reconcile.Wait, 0) }},
	{"reconcile", "netns_gone", "how long a network namespace is gone until what runtimes attached there is torn down; 0 for never", false,
		func(s *Settings) value { return durationOf(&s.Reconcile.NetnsGone, 0) }},

	{"pool", "size", "network namespaces that are kept ready; 0 for none", false,
		func(s *Settings) value { return intOf(&s.Pool.Size, 0, 100_000) }},
	{"pool", "dir", "directory in which network namespaces get their names", false,
		func(s *Settings) value { return textOf(&s.Pool.Dir, absolutePath) }},

	{"manager", "enabled", "keep a configuration of the plugin allocnet-cni in conf_dir", true,
		func(s *Settings) value { return boolOf(&s.Manager.Enabled) }},
	{"manager", "primary", "name of the network that it delegates to (default the first one that is not its own)", true,
		func(s *Settings) value { return textOf(&s.Manager.Primary, optional(networkName)) }},
	{"manager", "name", "name of its own network (default that of the primary one)", true,
		func(s *Settings) value { return textOf(&s.Manager.Name, optional(networkName)) }},
	{"manager", "own_file", "name of its own file in conf_dir", true,
		func(s *Settings) value { return textOf(&s.Manager.OwnFile, conflistName) }},
	{"manager", "readiness_file", "file without which the host is not ready (default none)", true,
		func(s *Settings) value { return textOf(&s.Manager.ReadinessFile, optional(absolutePath)) }},

	{"log", "level", "what to log: trace, debug, info, warn, error or off", true,
		func(s *Settings) value { return levelOf(&s.Log.Level) }},
	{"log", "json", "log JSON", false,
		func(s *Settings) value { return boolOf(&s.Log.JSON) }},

	{"telemetry", "otlp_endpoint", "URL of an OpenTelemetry collector (OTLP over HTTP) for spans (default none)", false,
		func(s *Settings) value { return textOf(&s.Telemetry.OTLPEndpoint, optional(httpURL)) }},
}
