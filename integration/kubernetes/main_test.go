package kubernetes

import (
	"os"
	"testing"

	"github.com/allocnet/allocnet/internal/testing/pidns"
)

// ownDirs are the directories in which the programs of a node write.
var ownDirs = []string{
	"/etc/cni/net.d", "/opt/cni/bin", "/opt/allocnet", "/etc/containerd", "/var/lib/containerd", "/var/lib/kubelet",
	"/var/lib/etcd", "/var/log/pods", "/var/log/containers",
}

func TestMain(m *testing.M) { os.Exit(pidns.Main(m, ownDirs...)) }
