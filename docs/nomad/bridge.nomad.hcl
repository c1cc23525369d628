# A job in Nomad's bridge network, whose plugins are allocnet's drop-in plugins.
job "proxy" {
  type = "system"

  group "proxy" {
    network {
      mode     = "bridge"
      hostname = "proxy"

      port "https" {
        static       = 443
        to           = 8443
        host_network = "public"
      }

      # -1 is the same as the host port.
      port "admin" {
        static = 9901
        to     = -1
      }
    }

    task "proxy" {
      driver = "docker"

      config {
        image = "nginx"
        ports = ["https", "admin"]
      }
    }
  }
}
