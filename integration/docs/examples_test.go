package docs

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/nomad"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// TestExamplesAreCompiled checks that the Go code in documents is compiled: it
// is also in a Go file, this one or one of the examples. That of the README is in
// configurator/example_test.go.
func TestExamplesAreCompiled(t *testing.T) {
	here, err := os.ReadFile("examples_test.go")
	require.NoError(t, err)
	container, err := os.ReadFile(filepath.Join(top, "examples/containerd/runtime.go"))
	require.NoError(t, err)
	for _, name := range documents(t)[1:] {
		for _, b := range read(t, name).blocks {
			if b.language != "go" {
				continue
			}
			var code strings.Builder
			for _, line := range b.lines {
				if line != "" {
					line = "\t" + line
				}
				code.WriteString(line + "\n")
			}
			compiled := strings.Contains(string(here), "{\n"+code.String()) || strings.Contains(string(container), "\n"+code.String())
			require.True(t, compiled, "%s:%d is neither in examples_test.go nor in the example", name, b.line)
		}
	}
}

var _ = []any{examplePool, exampleNetworkPool, exampleStart, exampleRollBack, exampleErrors, exampleUpdate, examplePolicy, exampleAttach, exampleClient, exampleNomad}

func examplePool(ctx context.Context) error {
	pool, err := sandbox.NewPool(sandbox.PoolOptions{Size: 16})
	if err != nil {
		return err
	}
	defer pool.Close()
	ns, err := pool.Take(ctx, "web-1")
	if err != nil {
		return err
	}
	return ns.Destroy()
}

func exampleNetworkPool(ctx context.Context) error {
	nets, err := configurator.New(configurator.Config{
		Networks: []string{"web"}, Pools: []configurator.Pool{{Network: "web", Size: 32}},
	})
	if err != nil {
		return err
	}
	defer nets.Close() // removes the namespaces that are left
	status, err := nets.Setup(ctx, allocnet.Allocation{ID: "web-1", OwnNetns: true})
	if err != nil {
		return err
	}
	log.Print(status.Address)
	return nil
}

func exampleStart(ctx context.Context, live []string) error {
	nets, err := configurator.New(configurator.Config{Networks: []string{"web"}})
	if err != nil {
		return err
	}
	defer nets.Close()
	mine := allocnet.Scope{Name: "my-scheduler", Live: live, DestroyNetns: true}
	if _, err := nets.RecoverScope(ctx, mine); err != nil {
		log.Print(err) // what could not be removed keeps its record
	}
	report, err := nets.GCScope(ctx, mine)
	if err != nil {
		return err
	}
	log.Printf("removed %q, kept %q", report.Removed, report.Kept)
	return nil
}

func exampleRollBack(ctx context.Context, nets allocnet.Service, alloc allocnet.Allocation, start func(*allocnet.Status) error) error {
	alloc.MustBeNew = true
	status, err := nets.Setup(ctx, alloc)
	switch {
	case errors.Is(err, allocnet.ErrExists):
		return err // it belongs to another caller: leave it alone
	case errors.Is(err, allocnet.ErrIncomplete):
		return errors.Join(err, nets.Teardown(ctx, alloc)) // something is left: remove it
	case err != nil:
		return err // nothing is left
	}
	if err := start(status); err != nil {
		return errors.Join(err, nets.Teardown(ctx, alloc))
	}
	return nil
}

func exampleErrors(err error) {
	var conflict *portmap.ConflictError
	var plugin *types.Error
	switch {
	case errors.As(err, &conflict):
		log.Printf("host port %d belongs to %q", conflict.Other.HostPort, conflict.OtherID)
	case errors.As(err, &plugin):
		log.Printf("a plugin refused with code %d: %s", plugin.Code, plugin.Msg)
	case errors.Is(err, allocnet.ErrUnknownNetwork):
		log.Print("write the network's configuration first")
	}
}

func exampleUpdate(ctx context.Context, nets allocnet.Service, status *allocnet.Status) error {
	changed, err := nets.Update(ctx, "web-1", allocnet.Change{
		Revision:  status.Revision, // optional: ErrRevision if another caller has changed it
		Unpublish: []portmap.Port{{Value: 8080}},
		Publish:   []portmap.Port{{Value: 8081, To: 80}},
		Labels:    map[string]*string{"tier": new("front"), "canary": nil}, // nil removes one
		Bandwidth: &allocnet.Bandwidth{EgressRate: 10_000_000, EgressBurst: 1_000_000},
	})
	if err != nil {
		return err
	}
	log.Print(changed.Ports)
	return nil
}

func examplePolicy(ctx context.Context, nets allocnet.Service) error {
	p, err := policy.Parse([]byte(`{"presets": ["egress-only", "no-metadata"]}`))
	if err != nil {
		return err
	}
	status, err := nets.Setup(ctx, allocnet.Allocation{
		ID: "agent-1", OwnNetns: true, Networks: []string{"allocnet"},
		Policy: p, Labels: map[string]string{"app": "agent"},
	})
	fmt.Println(status)
	return err
}

func exampleAttach(ctx context.Context, nets allocnet.Service) error {
	wider, err := nets.Attach(ctx, "web-1", "storage", allocnet.AttachOptions{Interface: "data0"})
	if err != nil {
		return err
	}
	narrower, err := nets.Detach(ctx, "web-1", "data0", wider.Revision)
	if err != nil {
		return err
	}
	log.Print(narrower.Interfaces)
	return nil
}

func exampleClient(ctx context.Context, alloc allocnet.Allocation) error {
	var nets allocnet.Service = client.New(client.Config{})
	status, err := nets.Setup(ctx, alloc)
	if errors.Is(err, client.ErrUnavailable) { // no daemon: nothing was done
		nets, err = configurator.New(configurator.Config{})
		if err != nil {
			return err
		}
		status, err = nets.Setup(ctx, alloc)
	}
	if err != nil {
		return err
	}
	log.Print(status.Address)
	return nets.Close()
}

func exampleNomad(ctx context.Context, nets allocnet.Service, task *exec.Cmd, id string, shared nomad.Shared) error {
	// shared is AllocatedResources.Shared of "nomad alloc status -json".
	group := nomad.Group{AllocID: id, JobID: "web", Name: "web", Shared: shared}
	alloc, err := group.Allocation()
	if err != nil {
		return err // names the port, its label and the fault
	}
	alloc.OwnNetns = true
	status, err := nets.Setup(ctx, alloc)
	if err != nil {
		return err
	}
	task.Env = append(os.Environ(), group.Environment(status)...)
	return task.Run()
}

// TestNomadExamples checks that the networks in docs/nomad.md are those of the jobs in
// docs/nomad, which a test of the module tools parses as Nomad does.
func TestNomadExamples(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(top, "docs", "nomad", "*.hcl"))
	require.NoError(t, err)
	var jobs string
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		jobs += string(text)
	}
	found := 0
	for _, b := range read(t, "docs/nomad.md").blocks {
		if b.language == "hcl" && b.lines[0] == "network {" {
			require.Contains(t, strings.ReplaceAll(jobs, "\n    ", "\n"), b.text())
			found++
		}
	}
	require.Positive(t, found)
}
