# Configuration of allocnetd, read from /etc/allocnet/allocnetd.hcl.
#
# A line that begins with "#" and no blank is a setting with its default: remove the
# "#" to change it. Every setting can also be given as an environment variable and as a
# flag, which override this file: "level" in the block "log" is ALLOCNETD_LOG_LEVEL and
# --log-level.
#
# Times are written as "5s" or "1m30s", sizes as "512KiB" or "1MiB".
#
# `allocnetd validate FILE` checks a file. SIGHUP (`systemctl reload allocnetd`) reads
# it again; settings that need a restart are marked. The daemon writes its active
# settings beside its socket, to allocnetd.sock.settings. The CNI plugin reads that file
# while the daemon is not running, so changes here take effect when the daemon starts.

# Where networks and their plugins are found.

# Directory of the network configurations (.conflist, .conf, .json).
#conf_dir = "/etc/cni/net.d"

# Directories that are searched for plugins, in order. The directories of a runtime that
# runs as root (its CNI_PATH) are searched first.
#plugin_dirs = ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"]

# Prefix under which vendors install plugins: a plugin of type T is first searched for in
# PREFIX/opt/T/bin.
#vendor_dir = ""

# Networks to attach to if a request names none, in order: the interface of the first one
# is eth0, that of the second one eth1. A network whose only plugin is loopback does not
# count. Empty: the network of the first file.
#networks = []

# Subnets of the embedded network "allocnet", at most one per family, for example
# ["10.202.0.0/16", "fd0a:110c:2e7::/64"]. Empty: the first setup chooses one of each family in
# which the host has nothing, and the state directory keeps them. See docs/networks.md.
#subnets = []

# The file in which flanneld writes the subnets of this host, usually
# "/run/flannel/subnet.env". The embedded network then has these subnets in place of
# "subnets", and spans all hosts on which flanneld runs. See docs/cluster.md.
#subnets_from = ""

# Routes of the embedded network that a routing daemon such as BIRD announces to other
# hosts. See docs/cluster.md.
routes {
  # The number of the routing table from which the daemon reads them. It must not be one
  # in which the host looks for its own routes (253 to 255). 0: no routes.
  #table = 0

  # The protocol number that tells the routes from those of other programs.
  #protocol = 91

  # Announce the subnets of the network, while it has allocations, in place of the
  # address of each allocation.
  #subnets = false

  # The networks from which all hosts have their subnets, such as "10.80.0.0/16". The
  # embedded network does not masquerade towards them: other hosts' allocations see the
  # addresses of allocations. With "subnets_from", flanneld's file names them.
  #cluster = []
}

# The network policy of all allocations in the embedded network, besides that of each
# allocation: presets (isolated, egress-only, no-metadata, no-host, published-only,
# no-private), the path of one file in JSON that only root can write, which a reload reads
# again, or "none". If it is empty, it is "no-host" and "published-only": they do not reach
# allocations of other networks that have policies, and of the host only the gateway's
# address and the link-local address of the host's end of their link. They are reached by
# each other, by the host, and at their host ports. With "subnets_from" or "routes", it is
# "no-host" alone. An allocation keeps the policy with which it was set up. The engine
# "exec" cannot enforce any, and has none if this is empty. See docs/policy.md.
#policy = []

# How allocations are set up.

# The engine that runs the plugins: "native" inside the daemon, "exec" as plugin
# binaries, "auto" selects the engine by the plugins of a network.
#engine = "auto"

# The prefix of the names of interfaces inside an allocation; a number follows.
#interface_prefix = "eth"

# Publish every port on all addresses of the host, whatever address was requested.
#ignore_port_mapping_host_ip = false

# Set up allocations that request something that no plugin of their networks declares:
# ports, addresses, a MAC address, bandwidth, DNS. The request has no effect, and the
# status lists it as unserved. Use this for schedulers that always send ports. By default
# such a request is an error. A network policy that a network does not enforce always is.
#allow_unserved = false

# The action if a process of the host already listens on a requested host port, over TCP
# or UDP (SCTP is not checked). Packets to that port go to the allocation once it is set
# up. warn: log it and report it to the caller. refuse: return an error that names the
# process. ignore: do not check.
#host_listeners = "warn"

# The host ports that are picked for requested ports without a number. Ports of the range
# may also be requested by number. It should be apart from the ports of outgoing connections
# (sysctl net.ipv4.ip_local_port_range).
#dynamic_ports = "20000-32000"

# Let CHECK restore what another program removed from the host, such as rules after
# "nft flush ruleset", and succeed if nothing else is wrong. If a CHECK fails, a runtime
# replaces the container, even if only a rule is missing.
#repair_on_check = true

# Accept network configurations in requests of users other than root: "conflists" of the
# API and "plugins" of the CNI plugin. They select the plugins that run as the daemon's
# user, and their configuration: a user who may send them can act as root.
# By default such a request is an error. Needs a restart.
#allow_conflists = false

# The longest time for one run of all plugins of an allocation.
#timeout = "1m"

# The grace period for running operations at shutdown. After it they are cancelled and
# undone.
#shutdown_grace = "30s"

# The directory of the records of allocations. It should be on a tmpfs, because a
# reboot also removes the allocations from the kernel. Needs a restart.
#state_dir = "/run/allocnet"

# The socket. A socket that systemd passes is used unchanged, and these settings are
# ignored. All need a restart.
socket {
  #path = "/run/allocnet/allocnetd.sock"

  # Names or numbers. Root and the members of the group may use the daemon. Regard
  # membership as root access: members control the network of every allocation. Empty:
  # the user and group of the process.
  #owner = ""
  #group = ""
  #mode = "0660"
}

# An ADD that failed with a temporary error is repeated after the delay and a random time
# up to the jitter.
retry {
  #attempts = 3
  #delay = "1s"
  #jitter = "1s"
}

# Limits for clients. Requests beyond a limit are refused at once. All need a restart.
limits {
  # Concurrent operations, and waiting ones. An operation that has waited for a plugin
  # for some seconds no longer counts as a concurrent operation.
  #operations = 32
  #queue = 1024

  # Operations on one allocation: one runs, the others wait.
  #per_allocation = 16

  # Streams of events, and connections of any kind. An eighth of the connections is
  # reserved for root; each other user may have half of the rest.
  #streams = 64
  #connections = 2048

  # The longest body of a request.
  #body = "1MiB"

  # The longest time for an operation on one allocation, including its time in the queue.
  #operation_timeout = "2m"
}

# At its start the daemon compares its records with the kernel. All need a restart.
reconcile {
  # "repair" restores what is missing and removes unfinished allocations. "report"
  # changes nothing and logs the differences; it also disables heal.
  #mode = "repair"

  # The daemon serves during the comparison, but reports that it is ready only after
  # the comparison, or after this time.
  #wait = "30s"

  # Runtimes do not always send DEL for a container whose network namespace is gone.
  # The daemon tears such an allocation down after this time, which releases its host
  # ports and addresses; "0s" stands for never. Allocations that schedulers set up
  # through the API are not affected.
  #netns_gone = "5m"
}

# While the daemon runs, it restores what other programs remove from the host, such as
# its nftables tables or the address of a bridge. All need a restart.
heal {
  # Restore it at once, when the kernel notifies the daemon of the removal.
  #enabled = true

  # Check every allocation once within this time, and restore what is missing: the
  # kernel does not report every change. "0s" stands for never.
  #check_interval = "10m"

  # The size of each of the two buffers for notifications of the kernel. If they are too
  # small for a burst, the daemon compares all allocations.
  #receive_buffer = "8MiB"
}

# The journal of operations, for `allocnet history`.
history {
  # Its maximum size; the oldest operations are dropped. "0B" stands for no journal.
  #size = "8MiB"
}

# Network namespaces.
pool {
  # Networks for which network namespaces are prepared, each with interface, addresses,
  # routes and rules. A setup with a network namespace of its own takes one, unless it
  # requests more than the network and host ports. pool "web" { size = 32 } in a block of
  # its own means the same as networks = ["web=32"] here.
  #networks = []

  # The number of prepared network namespaces, for POST /v1/sandboxes. Needs a restart.
  #size = 0

  # The directory of the network namespaces. Needs a restart.
  #dir = "/run/netns"
}

# The manager of the CNI configuration. It maintains a configuration list in conf_dir
# with which runtimes call allocnet-cni, which delegates to the primary network. If the
# manager is disabled, its file stays: runtimes use it until you remove it.
manager {
  #enabled = false

  # The name of the network to delegate to. Empty: the network of the first valid file.
  #primary = ""

  # The name of the manager's network. Empty: the name of the primary network.
  #name = ""

  # The name of the manager's file. It should sort before all other files.
  #own_file = "00-allocnet.conflist"

  # A file that another program creates when the network is ready, and removes when it is
  # not. Empty: no such file is required. Until the file exists for the first time,
  # runtimes that find another network use that one, without allocnet. When it is removed
  # later, allocnet refuses new allocations. Runtimes report that as their own state only
  # if they request CNI STATUS (networks of cniVersion 1.1.0).
  #readiness_file = ""

  # Labels of containers whose values are CNI_ARGS of the runtime, such as
  # ["namespace=NOMAD_NAMESPACE", "job=NOMAD_JOB_ID"] with Nomad, or
  # ["namespace=K8S_POD_NAMESPACE"] with containerd's CRI.
  #labels_from = []

  # One of CNI_ARGS of the runtime that is the network policy of the container: presets,
  # such as "no-private,no-metadata", or JSON. Empty: none.
  #policy_from = ""

  # Read labels and policies of pods from their annotations allocnet/labels, such as
  # "app=web,tier=1", and allocnet/policy: presets or JSON.
  #pod_annotations = false
}

# The log on standard error.
log {
  # trace, debug, info, warn, error or off
  #level = "info"

  # Needs a restart.
  #json = false
}

# A loopback address with a port, such as "127.0.0.1:9654", to serve the page of
# `allocnet ui` on: it shows the networks of the host in a browser, and changes nothing.
# The URL with the token, which changes with each start, is in a file beside the socket
# that only root can read: /run/allocnet/allocnetd.sock.url. Empty: no page. Needs a
# restart.
#ui = ""

# Spans of OpenTelemetry. Need a restart.
telemetry {
  # The URL of a collector that speaks OTLP over HTTP, such as "http://localhost:4318".
  # Empty: no spans. Sampling, headers and the like are configured by OpenTelemetry's
  # environment variables (OTEL_*).
  #otlp_endpoint = ""
}

# A TCP listener for Prometheus and load balancers. It serves GET of /metrics, /healthz
# and /readyz only, nothing of the API. Both settings need a restart.
metrics {
  # The address and the port, such as "127.0.0.1:9653", "[::1]:9653" or ":9653" for all
  # addresses. The address must exist when the daemon starts. Empty: no listener. Without
  # web_config, every process that reaches the address can read the metrics, which name
  # networks but no allocations.
  #listen = ""

  # The file with TLS, client certificates and users, in the format of Prometheus'
  # exporter-toolkit (tls_server_config, basic_auth_users). It and the files that it names
  # are read again for each connection, so new certificates need no reload.
  #web_config = ""
}
