# allocnetd on every client of a Nomad cluster, from the container image of a release.
# Nomad's Docker driver starts it in the host's own network, so it does not depend on
# itself. Clients have to permit privileged containers and volumes:
#
#   plugin "docker" {
#     config {
#       allow_privileged = true
#       volumes { enabled = true }
#     }
#   }
variable "image" {
  type        = string
  description = "The image of allocnet, with its version"
  default     = "localhost/allocnet:1.2.3"
}

variable "datacenters" {
  type    = list(string)
  default = ["*"]
}

job "allocnet" {
  type        = "system"
  datacenters = var.datacenters
  priority    = 100

  # One client after the other. Allocations keep their networks meanwhile.
  update {
    max_parallel = 1
    stagger      = "10s"
  }

  group "allocnet" {
    restart {
      interval = "1m"
      attempts = 10
      delay    = "5s"
      mode     = "delay"
    }

    # Copies the CNI plugin and loopback to the host; plugins of others stay.
    task "install" {
      driver = "docker"

      lifecycle {
        hook    = "prestart"
        sidecar = false
      }

      config {
        image        = var.image
        network_mode = "host"
        entrypoint   = ["/usr/bin/allocnet"]
        args         = ["plugins", "install", "/opt/cni/bin", "loopback", "--keep", "--copy-to", "/opt/allocnet"]
        volumes      = ["/opt/cni/bin:/opt/cni/bin", "/opt/allocnet:/opt/allocnet"]
      }

      resources {
        cpu    = 50
        memory = 128
      }
    }

    task "allocnetd" {
      driver       = "docker"
      kill_timeout = "60s"

      env {
        ALLOCNETD_SHUTDOWN_GRACE  = "30s"
        ALLOCNETD_MANAGER_ENABLED = "true"
      }

      config {
        image        = var.image
        network_mode = "host"
        pid_mode     = "host"
        privileged   = true
        args         = ["run"]

        volumes = [
          "/etc/allocnet:/etc/allocnet:ro",
          "/etc/cni/net.d:/etc/cni/net.d",
          "/opt/cni/bin:/opt/cni/bin",
          "/opt/allocnet:/opt/allocnet",
          "/run/allocnet:/run/allocnet",
          "/run/cni:/run/cni",
          "/var/lib/cni:/var/lib/cni",
          "/run/flannel:/run/flannel:ro",
        ]

        # Network namespaces are mounts: both sides have to see new ones.
        mount {
          type   = "bind"
          source = "/run/netns"
          target = "/run/netns"

          bind_options {
            propagation = "rshared"
          }
        }

        mount {
          type   = "bind"
          source = "/run/netns"
          target = "/var/run/netns"

          bind_options {
            propagation = "rshared"
          }
        }
      }

      resources {
        cpu        = 100
        memory     = 128
        memory_max = 2048
      }
    }
  }
}
