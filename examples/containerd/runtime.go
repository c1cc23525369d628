package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// scope separates the allocations of this program from those of others.
const scope = "allocnet-example"

// filesDir has a directory for each container, with its resolv.conf, hosts and log.
const filesDir = "/run/allocnet-example"

// gracePeriod is the time between SIGTERM and SIGKILL.
const gracePeriod = 5 * time.Second

// runtime connects containerd, which has the containers, and allocnet, which has their
// networks. A container and its allocation have the same name.
type runtime struct {
	client *containerd.Client
	nets   *configurator.Configurator
}

// running is a container that was started.
type running struct {
	status *allocnet.Status
	exit   <-chan containerd.ExitStatus
}

// recover removes the networks whose containers are gone. A container is created before
// its network, so the network of a container that is being started is not removed.
func (r *runtime) recover(ctx context.Context) error {
	mine := allocnet.Scope{Name: scope, DestroyNetns: true}
	if _, err := r.nets.RecoverScope(ctx, mine); err != nil {
		return err
	}
	containers, err := r.client.Containers(ctx)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, c := range containers {
		mine.Live = append(mine.Live, c.ID())
	}
	_, err = r.nets.GCScope(ctx, mine)
	return err
}

// start starts a container with its own network namespace. After an error, nothing of it
// is left.
func (r *runtime) start(ctx context.Context, name, image string, args []string, ports []portmap.Port) (_ *running, err error) {
	if err := r.stop(ctx, name); err != nil { // of a process that was killed
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.stop(context.WithoutCancel(ctx), name))
		}
	}()
	container, err := r.create(ctx, name, image, args)
	if err != nil {
		return nil, fmt.Errorf("create container %q: %w", name, err)
	}
	status, err := r.nets.Setup(ctx, allocnet.Allocation{ID: name, OwnNetns: true, Scope: scope, Ports: ports})
	if err != nil {
		return nil, err
	}
	if err := r.writeFiles(name, status); err != nil {
		return nil, err
	}
	task, err := container.NewTask(ctx, cio.LogFile(filepath.Join(filesDir, name, "log")))
	if err != nil {
		return nil, fmt.Errorf("create task of %q: %w", name, err)
	}
	exit, err := task.Wait(context.WithoutCancel(ctx))
	if err != nil {
		return nil, fmt.Errorf("wait for task of %q: %w", name, err)
	}
	if err := task.Start(ctx); err != nil {
		return nil, fmt.Errorf("start task of %q: %w", name, err)
	}
	return &running{status: status, exit: exit}, nil
}

// create creates a container whose specification has the path of the network namespace
// and the files that describe the network. Both exist before its task does.
func (r *runtime) create(ctx context.Context, name, image string, args []string) (containerd.Container, error) {
	img, err := r.client.GetImage(ctx, image)
	if err != nil {
		return nil, err
	}
	netns := specs.LinuxNamespace{
		Type: specs.NetworkNamespace, Path: filepath.Join(sandbox.DefaultDir, name),
	}
	var mounts []specs.Mount
	for _, file := range []string{"resolv.conf", "hosts"} {
		mounts = append(mounts, specs.Mount{
			Type: "bind", Options: []string{"rbind", "ro"},
			Source: filepath.Join(filesDir, name, file), Destination: "/etc/" + file,
		})
	}
	return r.client.NewContainer(ctx, name,
		containerd.WithImage(img), containerd.WithNewSnapshot(name, img),
		containerd.WithNewSpec(oci.WithImageConfigArgs(img, args), oci.WithHostname(name),
			oci.WithLinuxNamespace(netns), oci.WithMounts(mounts)))
}

// writeFiles writes the files that the container gets in /etc. A network without DNS
// gives it the resolvers of the host.
func (r *runtime) writeFiles(name string, status *allocnet.Status) error {
	dir := filepath.Join(filesDir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	resolvers := allocnet.ResolvConf(status.DNS)
	if resolvers == nil {
		var err error
		if resolvers, err = os.ReadFile("/etc/resolv.conf"); err != nil {
			return err
		}
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "resolv.conf"), resolvers, 0o644),
		os.WriteFile(filepath.Join(dir, "hosts"), allocnet.Hosts(status, name), 0o644))
}

// stop ends a container and removes everything of it, as far as it exists.
func (r *runtime) stop(ctx context.Context, name string) error {
	container, err := r.client.LoadContainer(ctx, name)
	switch {
	case err == nil:
		if err := end(ctx, container); err != nil {
			return err // its processes may still use the network
		}
	case !errdefs.IsNotFound(err):
		return fmt.Errorf("load container %q: %w", name, err)
	}
	// The container is deleted last: GC removes networks without one. Teardown refuses
	// names that would lead to another directory.
	if err := r.nets.Teardown(ctx, allocnet.Allocation{ID: name, OwnNetns: true, Scope: scope}); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(filesDir, name)); err != nil {
		return err
	}
	if container != nil {
		return container.Delete(ctx, containerd.WithSnapshotCleanup)
	}
	// A process that was killed may have left a snapshot without a container.
	if err := r.client.SnapshotService("").Remove(ctx, name); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove snapshot %q: %w", name, err)
	}
	return nil
}

// end ends the task of a container, if it has one.
func end(ctx context.Context, container containerd.Container) error {
	task, err := container.Task(ctx, nil)
	if errdefs.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("load task of %q: %w", container.ID(), err)
	}
	exit, err := task.Wait(ctx)
	if err != nil {
		return fmt.Errorf("wait for task of %q: %w", container.ID(), err)
	}
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := task.Kill(ctx, signal); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("kill task of %q: %w", container.ID(), err)
		}
		select {
		case <-exit:
			_, err = task.Delete(ctx)
			return err
		case <-time.After(gracePeriod):
		}
	}
	return fmt.Errorf("task of %q does not end", container.ID())
}
