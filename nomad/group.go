package nomad

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/portmap"
)

// ErrNoNetwork means that the group has no network of its own: its mode is "host",
// which is the default, or "none".
var ErrNoNetwork = errors.New("the group has no network of its own")

// BridgeNetwork is the network of groups with the mode "bridge": allocnet's embedded
// network. To use another one, change Networks of the Allocation.
const BridgeNetwork = "allocnet"

// cniMode begins the mode of a group with a CNI network; the name of the network
// follows.
const cniMode = "cni/"

// Group is a task group that Nomad has placed on a host.
type Group struct {
	AllocID   string // ID of Nomad's allocation
	Region    string
	Namespace string
	JobID     string
	Name      string
	Shared
}

// Shared are the resources that the tasks of a group share.
type Shared struct {
	Networks []Network // at most one
	// Ports are the ports with their host ports and addresses. If it is empty, the
	// ports are those of the network, and published on all addresses.
	Ports []AllocatedPort
}

// Network is the network block of a task group.
type Network struct {
	Mode     string // "host" or "", "none", "bridge" or "cni/<network>"
	Hostname string // for allocnet.Hosts
	DNS      *DNS   // see Group.DNS
	// ReservedPorts have a static host port, DynamicPorts one that is chosen when the
	// group is placed.
	ReservedPorts, DynamicPorts []Port
	CNI                         *CNI
}

// DNS is the resolver configuration of a group.
type DNS struct {
	Servers, Searches, Options []string
}

// CNI is the cni block of a network.
type CNI struct {
	Args map[string]string // CNI_ARGS of the job
}

// Port is a port of a network block.
type Port struct {
	Label       string
	Value       int    // host port; 0 means that it is not chosen yet
	To          int    // port in the network namespace; less than 1 means the same as Value
	HostNetwork string // name of the host network; "" is "default"
}

// AllocatedPort is a port with its host port.
type AllocatedPort struct {
	Label     string
	Value, To int
	HostIP    string // "" means all addresses
}

// inside returns the port in the network namespace.
func (p AllocatedPort) inside() int {
	if p.To < 1 {
		return p.Value
	}
	return p.To
}

// Allocation returns the allocation for a group, for which the caller sets Netns or
// OwnNetns. Its ID is that of Nomad's allocation, every port is published over tcp and
// udp, and its arguments are those of the job and the NOMAD_ arguments that newer versions of
// Nomad pass to CNI plugins.
//
// The error joins all faults, each with the label of the port. It is ErrNoNetwork for the
// modes "host" and "none". errors.As finds *portmap.PortError and *portmap.ConflictError.
func (g *Group) Allocation() (allocnet.Allocation, error) {
	network, err := g.network()
	if err != nil {
		return allocnet.Allocation{}, err
	}
	a := allocnet.Allocation{ID: g.AllocID, Networks: []string{network}, SchedulerArgs: g.args()}
	if cni := g.Networks[0].CNI; cni != nil {
		a.Args = cni.Args
	}
	ports := g.ports()
	errs := []error{checkLabels(ports)}
	for _, p := range ports {
		a.Ports = append(a.Ports, portmap.Port{Label: p.Label, Value: p.Value, To: p.inside(), HostIP: p.HostIP})
	}
	_, err = portmap.Mappings(a.Ports, portmap.Options{})
	if err := errors.Join(append(errs, err)...); err != nil {
		return allocnet.Allocation{}, fmt.Errorf("convert group %q of job %q: %w", g.Name, g.JobID, err)
	}
	return a, nil
}

// network returns the name of the group's network.
func (g *Group) network() (string, error) {
	mode := ""
	switch len(g.Networks) {
	case 0:
	case 1:
		mode = g.Networks[0].Mode
	default:
		return "", fmt.Errorf("convert group %q of job %q: %d networks; a group has one at most", g.Name, g.JobID, len(g.Networks))
	}
	name, cni := strings.CutPrefix(mode, cniMode)
	switch {
	case mode == "" || mode == "host" || mode == "none":
		return "", fmt.Errorf("convert group %q of job %q with network mode %q: %w", g.Name, g.JobID, mode, ErrNoNetwork)
	case mode == "bridge":
		return BridgeNetwork, nil
	case cni && name != "":
		return name, nil
	}
	return "", fmt.Errorf(`convert group %q of job %q: unknown network mode %q; must be host, none, bridge or cni/<network>`, g.Name, g.JobID, mode)
}

// ports returns the ports with their host ports.
func (g *Group) ports() (list []AllocatedPort) {
	if len(g.Ports) > 0 || len(g.Networks) == 0 {
		return g.Ports
	}
	for _, p := range slices.Concat(g.Networks[0].DynamicPorts, g.Networks[0].ReservedPorts) {
		list = append(list, AllocatedPort{Label: p.Label, Value: p.Value, To: p.To})
	}
	return list
}

// checkLabels returns an error for each port without a label of its own.
func checkLabels(ports []AllocatedPort) error {
	var errs []error
	seen := map[string]bool{}
	for i, p := range ports {
		switch {
		case p.Label == "":
			errs = append(errs, fmt.Errorf("port %d has no label", i))
		case seen[p.Label]:
			errs = append(errs, fmt.Errorf("port %q: another port has the same label", p.Label))
		}
		seen[p.Label] = true
	}
	return errors.Join(errs...)
}

// The names of Nomad's CNI arguments.
const (
	argRegion    = "NOMAD_REGION"
	argNamespace = "NOMAD_NAMESPACE"
	argJobID     = "NOMAD_JOB_ID"
	argGroup     = "NOMAD_GROUP_NAME"
	argAllocID   = "NOMAD_ALLOC_ID"
)

// args returns Nomad's CNI arguments without those whose value contains ';' or '=', because
// CNI_ARGS cannot hold them.
func (g *Group) args() map[string]string {
	args := map[string]string{
		argRegion: g.Region, argNamespace: g.Namespace, argJobID: g.JobID, argGroup: g.Name, argAllocID: g.AllocID,
	}
	for name, value := range args {
		if value == "" || strings.ContainsAny(value, ";=") {
			delete(args, name)
		}
	}
	return args
}

// GroupOf returns the group of a recorded allocation, and false if Nomad's arguments are
// not in the record. The mode of its network is "cni/<network>", also if it was "bridge".
// What only Nomad uses, such as the host name, is not recorded. If Nomad made the
// allocation through the CNI plugin, its ports have no labels. Nomad 1.6 passes no
// arguments to plugins.
func GroupOf(r *allocnet.Record) (*Group, bool) {
	if r.Args[argAllocID] == "" || len(r.Networks) == 0 {
		return nil, false
	}
	n := Network{Mode: cniMode + r.Networks[0].Network}
	for name, value := range r.Args {
		switch name {
		case argRegion, argNamespace, argJobID, argGroup, argAllocID:
			continue
		}
		if n.CNI == nil {
			n.CNI = &CNI{Args: map[string]string{}}
		}
		n.CNI.Args[name] = value
	}
	g := &Group{
		AllocID: r.Args[argAllocID], Region: r.Args[argRegion], Namespace: r.Args[argNamespace],
		JobID: r.Args[argJobID], Name: r.Args[argGroup],
	}
	g.Networks = []Network{n}
	for _, m := range r.Ports {
		// Each protocol has a mapping of its own.
		p := AllocatedPort{m.Label, m.HostPort, m.ContainerPort, m.HostIP}
		if !slices.Contains(g.Ports, p) {
			g.Ports = append(g.Ports, p)
		}
	}
	return g, true
}
