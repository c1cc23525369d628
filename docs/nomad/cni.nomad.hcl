# A job in the network "web" of the clients: a CNI configuration list in cni_config_dir
# that names the plugin "allocnet", or the manager's configuration.
job "web" {
  group "web" {
    count = 2

    network {
      mode = "cni/web"

      # A host port that Nomad chooses, on the address of the host network "private".
      port "http" {
        to           = 8080
        host_network = "private"
      }

      # Without "to", the task listens on the port that Nomad chooses.
      port "metrics" {}

      dns {
        servers  = ["192.0.2.53"]
        searches = ["example.org"]
        options  = ["ndots:2"]
      }
    }

    service {
      name     = "web"
      provider = "nomad"
      port     = "http"

      check {
        type     = "http"
        path     = "/"
        interval = "10s"
        timeout  = "2s"
      }
    }

    task "httpd" {
      driver = "exec"

      config {
        command = "/usr/bin/python3"
        args    = ["-m", "http.server", "${NOMAD_PORT_http}"]
      }
    }
  }
}
