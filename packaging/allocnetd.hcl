# Configuration of allocnetd, read from /etc/allocnet/allocnetd.hcl.
#
# Lines that begin with "#" and no blank are settings, with their defaults: remove
# the "#" to change one. Every setting can also be given as a variable and as a
# flag, which win over this file: "level" in the block "log" is
# ALLOCNETD_LOG_LEVEL and --log-level.
#
# Times are written as "5s" or "1m30s", sizes as "512KiB" or "1MiB".
#
# `allocnetd validate FILE` says what is wrong with a file. SIGHUP (`systemctl
# reload allocnetd`) reads it again; what needs a restart is marked so. What is in
# force is beside the socket, in allocnetd.sock.settings: the CNI plugin goes by that
# while the daemon is not running, so what is changed here meanwhile waits for the daemon.

# Where networks and their plugins are found.

# Directory of the network configurations (.conflist, .conf, .json).
#conf_dir = "/etc/cni/net.d"

# Directories that are searched for plugins, in order. Those of a runtime that runs as root
# (its CNI_PATH) come first.
#plugin_dirs = ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"]

# Prefix under which vendors install plugins: one of type T is first looked for in
# PREFIX/opt/T/bin.
#vendor_dir = ""

# Networks to attach to where a request names none, in order: the first one's
# interface is eth0, the next one's eth1. One that has the plugin loopback alone is
# not counted. None: that of the first file.
#networks = []

# Subnets of the embedded network "allocnet", at most one per family.
#subnets = ["10.202.0.0/16", "fd0a:110c:2e7::/64"]

# How allocations are set up.

# What runs the plugins: "native" inside the daemon, "exec" their binaries, "auto"
# whatever suits the plugins of a network.
#engine = "auto"

# Interfaces inside an allocation are called so, with a number.
#interface_prefix = "eth"

# Publish every port on all addresses of the host, whatever address was asked for.
#ignore_port_mapping_host_ip = false

# Set up allocations that request something no plugin of their networks declares:
# ports, addresses, a MAC address, bandwidth, DNS. The request has no effect, and the
# status names it as unserved. It is for schedulers that always send ports; by
# default such a request is an error.
#allow_unserved = false

# What to do about a host port on which a process of the host listens already, over TCP
# or UDP (SCTP is not looked at): what is sent there goes to the allocation from then on.
# warn: log it, and tell whoever asked. refuse: an error that names the process. ignore:
# do not look.
#host_listeners = "warn"

# Have a CHECK restore what another program removed from the host, such as rules after
# "nft flush ruleset", and succeed if nothing else is amiss. A runtime whose CHECK fails
# makes a new container for one that lacks no more than a rule.
#repair_on_check = true

# Run network configurations that come with a request of another user than root:
# "conflists" of the API, and "plugins" of the CNI plugin. They choose the plugins that
# run as the daemon's user, and their configuration: a user who may send them can act as
# root.
# By default such a request is an error. Needs a restart.
#allow_conflists = false

# The longest that all plugins of an allocation together may take.
#timeout = "1m"

# How long operations may go on when the daemon is told to end. Then they are
# cancelled, and what they had done is undone.
#shutdown_grace = "30s"

# What is remembered about allocations. It must be on tmpfs: the kernel forgets
# them with a reboot, too. Needs a restart.
#state_dir = "/run/allocnet"

# The socket. What systemd passes is used as it is, and counts more than these
# settings. All need a restart.
socket {
  #path = "/run/allocnet/allocnetd.sock"

  # Names or numbers. Root and the members of the group may use the daemon. Regard
  # membership as root: members decide about the network of every allocation. None:
  # those of the process; and of a socket from systemd, that socket's.
  #owner = ""
  #group = ""
  #mode = "0660"
}

# An ADD that failed, but may succeed later, is tried again after the delay and a
# random time up to the jitter.
retry {
  #attempts = 3
  #delay = "1s"
  #jitter = "1s"
}

# What the daemon bears. What goes beyond is refused at once. All need a restart.
limits {
  # Operations at once, and those that wait for their turn. One that waits for a
  # plugin for long does not count among the first.
  #operations = 32
  #queue = 1024

  # Operations on one allocation, of which one runs and the others wait.
  #per_allocation = 16

  # Streams of events, and connections of any kind. An eighth of the connections is
  # kept for root; each other user may have half of the rest.
  #streams = 64
  #connections = 2048

  # The longest body of a request.
  #body = "1MiB"

  # The longest time for the header of a request, and for an operation on one
  # allocation with its time in the queue.
  #header_timeout = "5s"
  #operation_timeout = "2m"
}

# At its start the daemon compares its records with the kernel. All need a restart.
reconcile {
  # "repair" puts back what is missing and takes down what was left unfinished,
  # "report" changes nothing and logs what it finds.
  #mode = "repair"

  # The daemon serves meanwhile, but says that it is ready only when this is done,
  # or after this time.
  #wait = "30s"

  # Runtimes do not always send DEL for a container whose network namespace is gone.
  # Its host ports and addresses are freed after this time; "0s" for never. What
  # schedulers set up through the API is theirs to tear down.
  #netns_gone = "5m"
}

# Network namespaces. All need a restart.
pool {
  # How many are made ahead, for POST /v1/sandboxes.
  #size = 0

  # Where they get their names.
  #dir = "/run/netns"
}

# The manager of the CNI configuration: it writes a configuration list into
# conf_dir that has runtimes call allocnet-cni, which delegates to the primary
# network. Turned off, it leaves that file to you: runtimes go on by it until it is
# removed.
manager {
  #enabled = false

  # The network that is delegated to. None: that of the first valid file.
  #primary = ""

  # The name of the own network. None: that of the primary one.
  #name = ""

  # The own file. It should sort before all others.
  #own_file = "00-allocnet.conflist"

  # A file that another program makes when the network is ready, and removes when
  # it is not. None: nothing is waited for. Before it is there for the first time,
  # runtimes that find another network use that, without allocnet. When it goes away
  # later, allocnet refuses what is new; runtimes show that as their own state only
  # where they ask (CNI STATUS: networks of cniVersion 1.1.0).
  #readiness_file = ""
}

# What goes to standard error.
log {
  # trace, debug, info, warn, error or off
  #level = "info"

  # Needs a restart.
  #json = false
}

# Spans of OpenTelemetry. Need a restart.
telemetry {
  # The URL of a collector that speaks OTLP over HTTP, such as
  # "http://localhost:4318". None: no spans. The rest, such as sampling and
  # headers, is OpenTelemetry's own environment (OTEL_*).
  #otlp_endpoint = ""
}
