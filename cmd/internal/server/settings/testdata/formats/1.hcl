# All settings of the first version, for TestFormats.

conf_dir = "/etc/cni/net.d"

plugin_dirs = ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"]

vendor_dir = ""

networks = []

subnets = ["10.202.0.0/16", "fd0a:110c:2e7::/64"]

engine = "native"

interface_prefix = "eth"

ignore_port_mapping_host_ip = false

allow_unserved = false

host_listeners = "warn"

repair_on_check = true

allow_conflists = false

timeout = "90s"

shutdown_grace = "30s"

state_dir = "/run/allocnet"

socket {
  path = "/run/allocnet/allocnetd.sock"

  owner = ""
  group = ""
  mode = "0660"
}

retry {
  attempts = 3
  delay = "1s"
  jitter = "1s"
}

limits {
  operations = 32
  queue = 1024

  per_allocation = 16

  streams = 64
  connections = 2048

  body = "1MiB"

  operation_timeout = "2m"
}

reconcile {
  mode = "repair"

  wait = "30s"

  netns_gone = "5m"
}

heal {
  enabled = true

  check_interval = "10m"

  receive_buffer = "8MiB"
}

history {
  size = "8MiB"
}

pool {
  networks = []

  size = 0

  dir = "/run/netns"
}

manager {
  enabled = false

  primary = ""

  name = ""

  own_file = "00-allocnet.conflist"

  readiness_file = ""
}

log {
  level = "info"

  json = false
}

telemetry {
  otlp_endpoint = ""
}

metrics {
  listen = ""

  web_config = ""
}
