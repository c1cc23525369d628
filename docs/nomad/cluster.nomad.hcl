# A job in the network "cluster" of docs/cluster.md: one allocation on each of three
# clients. The server is a program on the clients that listens on the port of its first
# argument; -var server=PATH names another one.
variable "server" {
  type    = string
  default = "/usr/local/bin/web"
}

job "web" {
  group "web" {
    count = 3

    constraint {
      distinct_hosts = true
    }

    network {
      mode = "cni/cluster"

      port "http" {
        static = 8080
        to     = 80
      }
    }

    # Nomad registers the addresses of the allocations.
    service {
      name         = "web"
      provider     = "nomad"
      port         = "http"
      address_mode = "alloc"
    }

    task "web" {
      driver = "raw_exec"

      config {
        command = var.server
        args    = ["80"]
      }

      resources {
        cpu    = 20
        memory = 20
      }
    }
  }
}
