package settings

import (
	"strings"

	"github.com/allocnet/allocnet/configurator"
)

// setting is one entry of the table.
type setting struct {
	block string // in the file; "" for its top level
	name  string
	usage string
	live  bool // a reload can change it
	in    func(*Settings) value
}

// key returns the name of the setting in errors and reports.
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

// Prefix is the prefix of the environment variables.
const Prefix = "ALLOCNETD_"

// table contains all settings.
var table = []setting{
	{"socket", "path", "Unix socket to listen on", false,
		func(s *Settings) value { return textOf(&s.Socket.Path, socketPath) }},
	{"socket", "owner", "owner of the socket, a name or number (default the user of the process)", false,
		func(s *Settings) value { return textOf(&s.Socket.Owner, anyText) }},
	{"socket", "group", "group of the socket, whose members may use the daemon, a name or number (default the group of the process)", false,
		func(s *Settings) value { return textOf(&s.Socket.Group, anyText) }},
	{"socket", "mode", "permissions of the socket, octal", false,
		func(s *Settings) value { return modeOf(&s.Socket.Mode) }},

	{"", "conf_dir", "directory of the network configurations", true,
		func(s *Settings) value { return textOf(&s.ConfDir, absolutePath) }},
	{"", "plugin_dirs", "directories to search for plugins", true,
		func(s *Settings) value { return listOf(&s.PluginDirs, absolutePath, ":") }},
	{"", "vendor_dir", "prefix under which vendors install plugins: DIR/opt/TYPE/bin (default none)", true,
		func(s *Settings) value { return textOf(&s.VendorDir, optional(absolutePath)) }},
	{"", "state_dir", "directory of the records; it should be on a tmpfs", false,
		func(s *Settings) value { return textOf(&s.StateDir, absolutePath) }},
	{"", "engine", "engine that runs the plugins: exec (plugin binaries), native (inside this process) or auto", true,
		func(s *Settings) value {
			return textOf(&s.Engine, oneOf(configurator.EngineAuto, configurator.EngineExec, configurator.EngineNative))
		}},
	{"", "networks", "networks to attach to, the first one as eth0 (default the first network of conf_dir)", true,
		func(s *Settings) value { return listOf(&s.Networks, networkName, ",") }},
	{"", "interface_prefix", "prefix of the names of interfaces, before a number", true,
		func(s *Settings) value { return textOf(&s.InterfacePrefix, interfacePrefix) }},
	{"", "subnets", "subnets of the embedded network \"allocnet\", at most one per family (default chosen at the first setup)", true,
		func(s *Settings) value { return prefixesOf(&s.Subnets) }},
	{"", "subnets_from", "file in which flanneld writes the subnets of this host: those of the embedded network, in place of subnets (default none)", true,
		func(s *Settings) value { return textOf(&s.SubnetsFrom, optional(absolutePath)) }},
	{"routes", "table", "routing table into which the embedded network writes routes for a routing daemon; 0 for none", true,
		func(s *Settings) value { return routeTableOf(&s.Routes.Table) }},
	{"routes", "protocol", "protocol number of the routes for a routing daemon", true,
		func(s *Settings) value { return routeProtocolOf(&s.Routes.Protocol) }},
	{"routes", "subnets", "write a route to the subnet in place of each address", true,
		func(s *Settings) value { return boolOf(&s.Routes.Subnets) }},
	{"routes", "cluster", "networks from which all hosts have their subnets: the embedded network does not masquerade towards them", true,
		func(s *Settings) value { return networksOf(&s.Routes.Cluster) }},
	{"", "policy", "network policy of all allocations in the embedded network: presets, the path of one file in JSON, or \"none\" (default no-host and published-only)", true,
		func(s *Settings) value { return policyValue{&s.Policy} }},
	{"", "ignore_port_mapping_host_ip", "publish every port on all addresses of the host", true,
		func(s *Settings) value { return boolOf(&s.IgnorePortMappingHostIP) }},
	{"", "allow_unserved", "accept requests that no plugin of the networks serves, such as ports, but not policies; they have no effect", true,
		func(s *Settings) value { return boolOf(&s.AllowUnserved) }},
	{"", "host_listeners", "action if a process of the host listens on a requested host port: warn, refuse or ignore", true,
		func(s *Settings) value {
			return textOf(&s.HostListeners, oneOf(configurator.ListenerWarn, configurator.ListenerRefuse, configurator.ListenerIgnore))
		}},
	{"", "dynamic_ports", "host ports that are picked for requested ports without a number", true,
		func(s *Settings) value { return portRangeOf(&s.DynamicPorts) }},
	{"", "repair_on_check", "let CHECK restore what is missing on the host, such as rules after a flush", true,
		func(s *Settings) value { return boolOf(&s.RepairOnCheck) }},
	{"", "allow_conflists", "accept network configurations in requests of callers other than root", false,
		func(s *Settings) value { return boolOf(&s.AllowConflists) }},
	{"", "timeout", "longest time for one run of all plugins of an allocation", true,
		func(s *Settings) value { return durationOf(&s.Timeout, 1) }},

	{"", "shutdown_grace", "grace period for running operations at shutdown", true,
		func(s *Settings) value { return durationOf(&s.ShutdownGrace, 0) }},

	{"retry", "attempts", "maximum number of attempts of an ADD", true,
		func(s *Settings) value { return intOf(&s.Retry.Attempts, 1, 100) }},
	{"retry", "delay", "time between two attempts", true,
		func(s *Settings) value { return durationOf(&s.Retry.Delay, 0) }},
	{"retry", "jitter", "longest random time that is added to the delay", true,
		func(s *Settings) value { return durationOf(&s.Retry.Jitter, 0) }},

	{"limits", "operations", "maximum number of concurrent operations", false,
		func(s *Settings) value { return intOf(&s.Limits.Operations, 1, 100_000) }},
	{"limits", "queue", "maximum number of waiting operations; further ones are refused", false,
		func(s *Settings) value { return intOf(&s.Limits.Queue, 1, 1_000_000) }},
	{"limits", "per_allocation", "maximum number of operations on one allocation: one running, the others waiting", false,
		func(s *Settings) value { return intOf(&s.Limits.PerAllocation, 1, 100_000) }},
	{"limits", "streams", "maximum number of concurrent streams of events", false,
		func(s *Settings) value { return intOf(&s.Limits.Streams, 1, 100_000) }},
	{"limits", "connections", "maximum number of concurrent connections", false,
		func(s *Settings) value { return intOf(&s.Limits.Connections, 1, 1_000_000) }},
	{"limits", "body", "longest body of a request", false,
		func(s *Settings) value { return sizeOf(&s.Limits.Body, 1<<10, 64<<20) }},
	{"limits", "operation_timeout", "longest time for an operation on one allocation, including its time in the queue", false,
		func(s *Settings) value { return durationOf(&s.Limits.OperationTimeout, 1) }},

	{"reconcile", "mode", "action at the start if records and kernel do not agree: repair or report", false,
		func(s *Settings) value { return textOf(&s.Reconcile.Mode, oneOf(ReconcileRepair, ReconcileReport)) }},
	{"reconcile", "wait", "longest time that the comparison at the start delays readiness", false,
		func(s *Settings) value { return durationOf(&s.Reconcile.Wait, 0) }},
	{"reconcile", "netns_gone", "time after which an allocation of a runtime without its network namespace is torn down; 0 for never", false,
		func(s *Settings) value { return durationOf(&s.Reconcile.NetnsGone, 0) }},

	{"heal", "enabled", "restore at once what other programs remove from the host", false,
		func(s *Settings) value { return boolOf(&s.Heal.Enabled) }},
	{"heal", "check_interval", "time in which every allocation is checked once in the background; 0 for never", false,
		func(s *Settings) value { return durationOf(&s.Heal.CheckInterval, 0) }},
	{"heal", "receive_buffer", "size of each of the two buffers for notifications of the kernel", false,
		func(s *Settings) value { return sizeOf(&s.Heal.ReceiveBuffer, 4<<10, 1<<30) }},

	{"pool", "size", "number of prepared network namespaces; 0 for none", false,
		func(s *Settings) value { return intOf(&s.Pool.Size, 0, 100_000) }},
	{"pool", "networks", "networks with prepared network namespaces, each with their number: NETWORK=SIZE", true,
		func(s *Settings) value { return poolsOf(&s.Pool.Networks) }},
	{"pool", "dir", "directory of the network namespaces", false,
		func(s *Settings) value { return textOf(&s.Pool.Dir, absolutePath) }},

	{"history", "size", "maximum size of the journal of operations; 0 for none", true,
		func(s *Settings) value { return sizeOf(&s.History.Size, 0, 1<<40) }},

	{"manager", "enabled", "maintain a configuration of the plugin allocnet-cni in conf_dir", true,
		func(s *Settings) value { return boolOf(&s.Manager.Enabled) }},
	{"manager", "primary", "name of the network to delegate to (default the first one that is not the manager's)", true,
		func(s *Settings) value { return textOf(&s.Manager.Primary, optional(networkName)) }},
	{"manager", "name", "name of the manager's network (default the name of the primary one)", true,
		func(s *Settings) value { return textOf(&s.Manager.Name, optional(networkName)) }},
	{"manager", "own_file", "name of the manager's file in conf_dir", true,
		func(s *Settings) value { return textOf(&s.Manager.OwnFile, conflistName) }},
	{"manager", "readiness_file", "file without which the host is not ready (default none)", true,
		func(s *Settings) value { return textOf(&s.Manager.ReadinessFile, optional(absolutePath)) }},
	{"manager", "labels_from", "labels of containers whose values are CNI_ARGS of the runtime: LABEL=ARGUMENT", true,
		func(s *Settings) value { return labelSourcesOf(&s.Manager.LabelsFrom) }},
	{"manager", "policy_from", "one of CNI_ARGS of the runtime that is the network policy of the container: presets or JSON (default none)", true,
		func(s *Settings) value { return textOf(&s.Manager.PolicyFrom, optional(argumentName)) }},
	{"manager", "pod_annotations", "read labels and policies of pods from their annotations allocnet/labels and allocnet/policy", true,
		func(s *Settings) value { return boolOf(&s.Manager.PodAnnotations) }},

	{"log", "level", "level of the log: trace, debug, info, warn, error or off", true,
		func(s *Settings) value { return levelOf(&s.Log.Level) }},
	{"log", "json", "log as JSON", false,
		func(s *Settings) value { return boolOf(&s.Log.JSON) }},

	{"telemetry", "otlp_endpoint", "URL of an OpenTelemetry collector (OTLP over HTTP) for spans (default none)", false,
		func(s *Settings) value { return textOf(&s.Telemetry.OTLPEndpoint, optional(httpURL)) }},

	{"metrics", "listen", "TCP address to serve /metrics, /healthz and /readyz on, such as 127.0.0.1:9653 (default none)", false,
		func(s *Settings) value { return textOf(&s.Metrics.Listen, optional(listenAddress)) }},
	{"metrics", "web_config", "file with TLS, client certificates and users for that address, in the format of exporter-toolkit (default none)", false,
		func(s *Settings) value { return textOf(&s.Metrics.WebConfig, optional(absolutePath)) }},

	{"", "ui", "loopback address to serve the page of allocnet ui on, such as 127.0.0.1:9654 (default none)", false,
		func(s *Settings) value { return textOf(&s.UI, optional(LoopbackAddress)) }},
}
