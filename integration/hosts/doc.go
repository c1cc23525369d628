// Package hosts tests networks that span several hosts. Each host is a network namespace and a
// mount namespace with its own allocnetd and flanneld, connected to the others by an underlay;
// etcd runs in another one, and so does a server of Nomad, whose clients run on the hosts, as
// containerd does. All of them are the real programs.
package hosts
