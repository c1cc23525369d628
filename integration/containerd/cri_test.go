package containerd

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/allocnet/allocnet/internal/testing/ociimage"
)

// kubelet is a client of containerd's CRI, as the kubelet is one.
type kubelet struct {
	cri.RuntimeServiceClient
	t testing.TB
	h *host
}

// newKubelet returns a client and waits until CRI has a network.
func newKubelet(h *host) *kubelet {
	h.t.Helper()
	h.client("k8s.io") // has the images of CRI
	conn, err := grpc.NewClient("unix://"+h.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = conn.Close() })
	k := &kubelet{cri.NewRuntimeServiceClient(conn), h.t, h}
	k.ready()
	return k
}

// ready waits until CRI responds and has a network.
func (k *kubelet) ready() {
	k.t.Helper()
	eventually(k.t, "CRI has a network", func() bool {
		s, err := k.Status(k.t.Context(), &cri.StatusRequest{})
		if err != nil {
			return false
		}
		for _, c := range s.Status.Conditions {
			if !c.Status {
				return false
			}
		}
		return true
	})
}

// pod is a pod with one container, which serves its files at a port of the host.
type pod struct {
	name string
	port int
	id   string // of the sandbox

	namespace   string // of Kubernetes; default "default"
	annotations map[string]string
}

func pods(n int) (list []*pod) {
	for i := range n {
		list = append(list, &pod{name: fmt.Sprintf("web-%d", i), port: 20000 + i})
	}
	return list
}

func (p *pod) config() *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: p.name, Uid: p.name, Namespace: cmp.Or(p.namespace, "default")},
		Annotations:  p.annotations,
		Hostname:     p.name,
		PortMappings: []*cri.PortMapping{{Protocol: cri.Protocol_TCP, ContainerPort: 80, HostPort: int32(p.port)}},
		Linux:        &cri.LinuxPodSandboxConfig{},
	}
}

// run runs a pod without a container.
func (k *kubelet) run(ctx context.Context, p *pod) error {
	r, err := k.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.config()})
	if err == nil {
		p.id = r.PodSandboxId
	}
	return err
}

// serve starts the container of a pod.
func (k *kubelet) serve(ctx context.Context, p *pod) error {
	c, err := k.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: p.id, SandboxConfig: p.config(),
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "web"}, Image: &cri.ImageSpec{Image: ociimage.Name}, Command: server,
			Linux: &cri.LinuxContainerConfig{},
		},
	})
	if err == nil {
		_, err = k.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ContainerId})
	}
	return err
}

func (k *kubelet) stop(ctx context.Context, p *pod) error {
	_, err := k.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.id})
	return err
}

func (k *kubelet) remove(ctx context.Context, p *pod) error {
	_, err := k.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.id})
	return err
}

// requireServed checks that a pod responds at its port of the host, with its own hosts
// file.
func (k *kubelet) requireServed(p *pod) {
	k.t.Helper()
	require.Contains(k.t, k.h.requireGet(p.port, "/etc/hostname"), p.name)
}

// each calls do for all pods, ten at a time, and returns how long each call took.
func (k *kubelet) each(list []*pod, do func(context.Context, *pod) error) (times []time.Duration, errs []error) {
	var mu sync.Mutex
	var running sync.WaitGroup
	queue := make(chan *pod)
	for range 10 {
		running.Go(func() {
			for p := range queue {
				ctx, cancel := context.WithTimeout(k.t.Context(), time.Minute)
				began := time.Now()
				err := do(ctx, p)
				took := time.Since(began)
				cancel()
				mu.Lock()
				times = append(times, took)
				if err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", p.name, err))
				}
				mu.Unlock()
			}
		})
	}
	for _, p := range list {
		queue <- p
	}
	close(queue)
	running.Wait()
	return times, errs
}

// all is each for calls that must succeed.
func (k *kubelet) all(list []*pod, do func(context.Context, *pod) error) []time.Duration {
	k.t.Helper()
	times, errs := k.each(list, do)
	require.Empty(k.t, errs)
	return times
}

// removeAll stops and removes all pods that CRI knows.
func (k *kubelet) removeAll() {
	k.t.Helper()
	known, err := k.ListPodSandbox(k.t.Context(), &cri.ListPodSandboxRequest{})
	require.NoError(k.t, err)
	var list []*pod
	for _, s := range known.Items {
		list = append(list, &pod{name: s.Metadata.Name, id: s.Id})
	}
	k.all(list, k.stop)
	k.all(list, k.remove)
}
