// Scheduler keeps the tasks of a file running on this host, each in an
// allocation of its own. As root:
//
//	go run ./examples/scheduler -jobs jobs.json
//
// The file has the number of tasks of each job, as in {"db": 1, "web": 3}. The
// scheduler reads it again and again. It places tasks while the host has slots,
// gives each one a host port, restarts it in the same network when it ends, and
// removes tasks that the file no longer names.
//
// Tasks outlive the scheduler, which keeps no state of its own: the next one
// finds allocations in allocnet's records, and their processes by their network
// namespaces. To stop all tasks, write {} to the file. A task here is a process that
// answers HTTP requests with its name: see process.go.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// scope separates the scheduler's allocations from those of other programs.
const scope = "example-scheduler"

func main() {
	if len(os.Args) == 3 && os.Args[1] == "task" {
		log.Fatal(task(os.Args[2]))
	}
	var s scheduler
	flag.StringVar(&s.file, "jobs", "jobs.json", "`file` with the number of tasks of each job")
	flag.IntVar(&s.slots, "slots", 16, "`number` of tasks that fit on this host")
	flag.IntVar(&s.firstPort, "first-port", 20000, "lowest host `port` of a task")
	flag.IntVar(&s.lastPort, "last-port", 20999, "highest host `port` of a task")
	interval := flag.Duration("interval", time.Second, "`time` between two looks at the file and the tasks")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := s.run(ctx, *interval); err != nil {
		log.Fatal(err)
	}
}

type scheduler struct {
	file                       string
	slots, firstPort, lastPort int
	nets                       allocnet.Service // client.New returns one that calls the daemon
}

func (s *scheduler) run(ctx context.Context, interval time.Duration) error {
	nets, err := configurator.New(configurator.Config{
		Network:   "allocnet",                  // the embedded network
		Listeners: configurator.ListenerRefuse, // leave ports of the host's own processes alone
	})
	if err != nil {
		return err
	}
	defer nets.Close() // waits for the deletion of links, which follows a Teardown
	s.nets = nets

	// What a killed scheduler had only begun is removed, what it had completed stays.
	report, err := s.nets.RecoverScope(ctx, allocnet.Scope{Name: scope})
	if err != nil {
		log.Print(err) // what could not be removed keeps its record
	}
	if report != nil && len(report.Removed) > 0 {
		log.Printf("recovered %q", report.Removed)
	}
	for ctx.Err() == nil {
		if err := s.reconcile(ctx); err != nil {
			log.Print(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(interval):
		}
	}
	return nil
}

// reconcile makes the host run the tasks that the file names, and no others.
func (s *scheduler) reconcile(ctx context.Context) error {
	wanted, err := s.wanted()
	if err != nil {
		return err // no task is stopped because of an invalid file
	}
	errs := []error{s.remove(ctx, wanted)}
	records, err := s.nets.List(ctx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	taken := map[int]bool{}     // host ports of all allocations
	present := map[string]int{} // host port of each task that is on the host
	for _, r := range records {
		for _, p := range r.Ports {
			taken[p.HostPort] = true
			if r.Scope == scope && slices.Contains(wanted, r.ID) {
				present[r.ID] = p.HostPort
			}
		}
	}
	for _, id := range place(wanted, present, s.slots) {
		if err := s.ensure(ctx, id, present[id], taken); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// wanted returns the IDs of the tasks that the file names.
func (s *scheduler) wanted() (ids []string, err error) {
	text, err := os.ReadFile(s.file)
	if err != nil {
		return nil, err
	}
	jobs := map[string]int{}
	if err := json.Unmarshal(text, &jobs); err != nil {
		return nil, fmt.Errorf("%s: %w", s.file, err)
	}
	for _, job := range slices.Sorted(maps.Keys(jobs)) {
		for i := range jobs[job] {
			ids = append(ids, fmt.Sprintf("%s-%d", job, i))
		}
	}
	return ids, nil
}

// remove stops the tasks that are not wanted and removes their allocations.
func (s *scheduler) remove(ctx context.Context, wanted []string) error {
	garbage := allocnet.Scope{Name: scope, Live: wanted, DestroyNetns: true}
	plan, err := s.nets.PlanGC(ctx, garbage)
	if err != nil {
		return err
	}
	for _, r := range plan.Records {
		if err := stop(r.Netns); err != nil {
			return err // a task keeps its network while it runs
		}
	}
	report, err := s.nets.GCScope(ctx, garbage)
	if report != nil && len(report.Removed) > 0 {
		log.Printf("removed %q", report.Removed)
	}
	return err
}

// place selects the tasks that fit on the host. Those that are there stay.
func place(wanted []string, present map[string]int, slots int) []string {
	here := slices.Sorted(maps.Keys(present))
	others := slices.DeleteFunc(wanted, func(id string) bool { return present[id] != 0 })
	free := min(max(slots-len(here), 0), len(others))
	return append(here, others[:free]...)
}

// ensure makes a task run. port is the host port that it has, or 0.
func (s *scheduler) ensure(ctx context.Context, id string, port int, taken map[int]bool) error {
	var status *allocnet.Status
	var err error
	if port != 0 {
		status, err = s.setUp(ctx, id, port)
	} else {
		status, err = s.setUpAnywhere(ctx, id, taken)
	}
	if err != nil {
		return err
	}
	netns := filepath.Join(sandbox.DefaultDir, id)
	running, err := processes(netns)
	if err != nil || len(running) > 0 {
		return err
	}
	log.Printf("start %s: host port %d leads to %s", id, status.Ports[0].HostPort, status.Address)
	return start(id, netns, allocnet.Environment(status))
}

// setUpAnywhere sets up an allocation with the first free host port.
func (s *scheduler) setUpAnywhere(ctx context.Context, id string, taken map[int]bool) (*allocnet.Status, error) {
	for port := s.firstPort; port <= s.lastPort; port++ {
		if taken[port] {
			continue
		}
		taken[port] = true
		status, err := s.setUp(ctx, id, port)
		if errors.Is(err, allocnet.ErrListener) || errors.Is(err, allocnet.ErrPortTaken) {
			continue // by a process, or by a network without a record
		}
		return status, err
	}
	return nil, errors.New("no host port is free")
}

// setUp sets up an allocation, or checks and repairs it if it exists.
func (s *scheduler) setUp(ctx context.Context, id string, port int) (*allocnet.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return s.nets.Setup(ctx, allocnet.Allocation{
		ID: id, OwnNetns: true, Scope: scope,
		Ports: []portmap.Port{{Label: "http", Value: port, To: 8080, Protocols: []string{"tcp"}}},
	})
}
