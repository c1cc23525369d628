// Command pod runs and removes pods in containerd through CRI, as the kubelet does.
//
//	pod ready            fails unless CRI has a network
//	pod run NAME IMAGE   runs a pod with the host port 8080 for its port 80, prints its address
//	pod remove NAME      stops the pod and removes it
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const socket = "unix:///run/containerd/containerd.sock"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	k := kubelet{cri.NewRuntimeServiceClient(conn)}
	switch {
	case len(args) == 1 && args[0] == "ready":
		return k.ready(ctx)
	case len(args) == 3 && args[0] == "run":
		return k.run(ctx, args[1], args[2])
	case len(args) == 2 && args[0] == "remove":
		return k.remove(ctx, args[1])
	}
	return fmt.Errorf("%q: unknown command", args)
}

type kubelet struct{ cri.RuntimeServiceClient }

// ready returns an error unless CRI is ready and has a network.
func (k kubelet) ready(ctx context.Context) error {
	s, err := k.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return err
	}
	for _, c := range s.Status.Conditions {
		if !c.Status {
			return fmt.Errorf("%s: %s", c.Type, c.Message)
		}
	}
	return nil
}

// run runs a pod with a container of the image, and prints the address of the pod.
func (k kubelet) run(ctx context.Context, name, image string) error {
	r, err := k.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config(name)})
	if err != nil {
		return err
	}
	c, err := k.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: r.PodSandboxId, SandboxConfig: config(name),
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: name}, Image: &cri.ImageSpec{Image: image},
			Linux: &cri.LinuxContainerConfig{},
		},
	})
	if err != nil {
		return err
	}
	if _, err := k.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
		return err
	}
	s, err := k.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: r.PodSandboxId})
	if err != nil {
		return err
	}
	fmt.Println(s.Status.Network.Ip)
	return nil
}

func config(name string) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Uid: name, Namespace: "default"},
		Hostname:     name,
		PortMappings: []*cri.PortMapping{{Protocol: cri.Protocol_TCP, ContainerPort: 80, HostPort: 8080}, {Protocol: cri.Protocol_UDP, ContainerPort: 80, HostPort: 8080}},
		Linux:        &cri.LinuxPodSandboxConfig{},
	}
}

// remove stops a pod and removes it.
func (k kubelet) remove(ctx context.Context, name string) error {
	known, err := k.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	for _, s := range known.Items {
		if s.Metadata.Name != name {
			continue
		}
		_, stopped := k.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.Id})
		_, removed := k.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.Id})
		return errors.Join(stopped, removed)
	}
	return fmt.Errorf("pod %q does not exist", name)
}
