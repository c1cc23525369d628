// Package kubernetes tests a node of Kubernetes whose pods have their networks from deploy/daemonset.yaml: etcd, the API
// server, the controller manager, the scheduler, the kubelet and containerd, all of them the real programs, on a private
// host. make kubernetes compiles them and runs the tests.
package kubernetes
