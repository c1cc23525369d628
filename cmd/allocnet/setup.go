package main

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/cmd/internal/netpolicy"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
)

// setupFlags are the flags of setup as they are typed.
type setupFlags struct {
	netns     string
	create    bool
	mustBeNew bool
	ports     []string
	args      []string
	labels    []string
	reserved  bool // labels of namespaces are permitted
	bandwidth string
	ips       []string
	mac       string
	addressed bool
	dns       configurator.DNS
	scope     string
	policy    string
}

func newSetup(a *app) *cobra.Command {
	var f setupFlags
	c := &cobra.Command{
		Use:   "setup ID",
		Short: "Attach a network namespace to its networks",
		Long: `Attach a network namespace to its networks.

An existing allocation is checked, and repaired if necessary. If something of it is gone
and cannot be restored, it is set up again, and may get another address. Any other
finding is an error, and the network stays as it is. With --new, an existing allocation
is an error and stays unchanged.

A failed setup removes everything, including a namespace that it created. If the
message says that the record is kept, run ` + "`allocnet teardown ID`" + `.`,
		Example: `  allocnet setup web --create --port 8080:80/tcp
  allocnet setup web --netns /run/netns/web --network front --network back
  allocnet setup web --create --port http=127.0.0.1:8080:80/tcp --bandwidth ingress=100M,egress=10M
  allocnet setup web --create --policy egress-only,no-private`,
		Args:              oneID,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(c *cobra.Command, args []string) error { return a.setup(c, args[0], &f) },
	}
	flags := c.Flags()
	flags.StringVar(&f.netns, "netns", "", "path of the network namespace (default /run/netns/ID; with --create, ID in the directory of the setting pool.dir)")
	flags.BoolVar(&f.create, "create", false, "create the network namespace if it does not exist")
	flags.BoolVar(&f.mustBeNew, "new", false, "fail if the allocation exists already")
	flags.StringArrayVarP(&f.ports, "port", "p", nil, "port to publish: [label=][hostIP:]hostPort[-endPort][:containerPort[-endPort]][/protocol[+protocol...]]; without a protocol tcp and udp; 0 picks a free host port; may be repeated")
	flags.StringArrayVar(&f.args, "arg", nil, "CNI argument KEY=VALUE; may be repeated")
	flags.StringArrayVarP(&f.labels, "label", "l", nil, "label KEY=VALUE for selections by policies, and by ls --filter label=KEY=VALUE; may be repeated")
	reservedFlag(c, &f.reserved)
	flags.StringSliceVar(&f.ips, "ip", nil, "requested address; may be repeated")
	flags.BoolVar(&f.addressed, "require-address", false, "fail if no network gives an address (always the case with --port or --ip)")
	flags.StringVar(&f.mac, "mac", "", "hardware address of the interface")
	flags.StringSliceVar(&f.dns.Servers, "dns-server", nil, "resolver for the network to use; may be repeated")
	flags.StringSliceVar(&f.dns.Searches, "dns-search", nil, "search domain; may be repeated")
	flags.StringSliceVar(&f.dns.Options, "dns-option", nil, "resolver option; may be repeated")
	flags.StringVar(&f.dns.Domain, "dns-domain", "", "domain of the allocation")
	flags.StringVar(&f.bandwidth, "bandwidth", "", "limits in bits per second: ingress=RATE[:BURST],egress=RATE[:BURST]")
	policyFlag(c, &f.policy, "network policy: FILE, -, PRESET[,PRESET...] or none; see allocnet policy --help")
	scopeFlag(c, &f.scope, "owner of the allocation; gc removes it only with the same --scope")
	for _, name := range []string{"port", "arg", "label", "ip", "mac", "dns-server", "dns-search", "dns-option", "dns-domain", "bandwidth"} {
		_ = c.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	return c
}

// statusMessages are log messages of the library. A Status contains the same
// information in its fields Warnings and Unserved.
var statusMessages = []string{
	"a process of the host listens on a published host port; packets to the port now go to the allocation",
	"no plugin of the networks declares capabilities that the allocation requests; they have no effect",
	"host ports on an address do not answer",
}

// showStatus omits from the log what a Status contains that the command prints.
func (a *app) showStatus() {
	for _, message := range statusMessages {
		a.shown.Add(message)
	}
}

// setup sets up an allocation and prints its status.
func (a *app) setup(c *cobra.Command, id string, f *setupFlags) error {
	a.showStatus()
	conf, err := a.service()
	if err != nil {
		return err
	}
	if err := usableID(c.Context(), conf, id); err != nil {
		return err
	}
	if id, err = wholeID(c.Context(), conf, id, isPrefix(shownID)); err != nil {
		return err
	}
	alloc, err := f.allocation(id)
	if err != nil {
		return err
	}
	if f.policy != "" && f.policy != netpolicy.None {
		if alloc.Policy, err = a.readPolicy("--policy", f.policy); err != nil {
			return err
		}
	}
	alloc.Networks = a.flags.networks
	if alloc.OwnNetns = f.create; f.create && f.netns == "" {
		alloc.Netns = "" // the daemon or the library chooses the directory
	}
	done := a.progress("setting up %s", id)
	status, err := conf.Setup(c.Context(), *alloc)
	done()
	if err != nil && c.Context().Err() != nil {
		awaitUndo(c.Context(), conf, id)
	}
	if err != nil {
		return outlived(c.Context(), conf, id, err)
	}
	return a.printStatus(id, status)
}

// undoTime bounds awaitUndo. Tests replace it.
var undoTime = 10 * time.Second

// awaitUndo waits until the daemon has undone an interrupted setup: a check waits for the lock.
func awaitUndo(ctx context.Context, conf allocnet.Service, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	_ = conf.Check(ctx, configurator.Allocation{ID: id})
}

// outlived adds a step to ErrExists if the allocation's network namespace is gone.
func outlived(ctx context.Context, conf allocnet.Service, id string, err error) error {
	if !errors.Is(err, configurator.ErrExists) {
		return err
	}
	if r, getErr := conf.Get(ctx, id); getErr != nil || !r.NetnsGone {
		return err
	}
	return stepError{err, "its network namespace is gone: `allocnet teardown ID` removes what is left on the host; then try again"}
}

// allocation reads the flags.
func (f *setupFlags) allocation(id string) (*configurator.Allocation, error) {
	alloc := &configurator.Allocation{ID: id, Netns: netnsPath(id, f.netns), IPs: f.ips, MAC: f.mac, RequireAddress: f.addressed, MustBeNew: f.mustBeNew, Scope: f.scope, AllowReservedLabels: f.reserved}
	for _, s := range f.ports {
		port, err := portmap.Parse(s)
		if err != nil {
			return nil, usagef("--port: %w", err)
		}
		alloc.Ports = append(alloc.Ports, port)
	}
	for _, s := range f.args {
		key, value, found := strings.Cut(s, "=")
		if !found || key == "" {
			return nil, usagef("--arg %q: must be KEY=VALUE", s)
		}
		if alloc.Args == nil {
			alloc.Args = map[string]string{}
		}
		alloc.Args[key] = value
	}
	var err error
	if alloc.Labels, err = parsePairs("--label", f.labels); err != nil {
		return nil, err
	}
	for _, s := range f.dns.Servers {
		if _, err := netip.ParseAddr(s); err != nil {
			return nil, usagef("--dns-server %q: must be an IP address", s)
		}
	}
	if d := f.dns; len(d.Servers)+len(d.Searches)+len(d.Options) > 0 || d.Domain != "" {
		alloc.DNS = &d
	}
	if f.bandwidth != "" {
		limits, err := parseBandwidth(f.bandwidth)
		if err != nil {
			return nil, usagef("--bandwidth: %w", err)
		}
		alloc.Bandwidth = limits
	}
	return alloc, nil
}

// printStatus prints the result of a setup.
func (a *app) printStatus(id string, s *configurator.Status) error {
	if a.flags.json {
		return a.out.JSON(s)
	}
	how := "is set up already"
	switch {
	case s.Created:
		how = "is set up"
	case s.SetUpAgain:
		how = "was set up again, because it could not be repaired"
	}
	a.out.Printf("%s %s %s\n\n", a.out.Paint(term.Green, a.out.Mark()), a.out.Paint(term.Bold, id), how)
	a.printInterfaces(s)
	a.printPorts(s.Ports)
	a.printUnserved(s.Unserved)
	a.printWarnings(s.Warnings)
	return nil
}

func (a *app) printWarnings(texts []string) {
	for i, text := range texts {
		if i == 0 {
			a.out.Printf("\n")
		}
		a.out.Printf("%s %s\n", a.out.Paint(term.Yellow, "warning:"), text)
	}
}

// printUnserved prints requests that have no effect.
func (a *app) printUnserved(capabilities []string) {
	if len(capabilities) > 0 {
		a.out.Printf("\n%s %s\n", a.out.Paint(term.Yellow, "not served:"), strings.Join(capabilities, ", "))
	}
}

// printInterfaces prints the interfaces inside the sandbox, with MTUs if a network reports
// one.
func (a *app) printInterfaces(s *configurator.Status) {
	inside := slices.DeleteFunc(slices.Clone(s.Interfaces), func(i configurator.Interface) bool { return i.Sandbox == "" || i.Name == "lo" })
	hasMTU := slices.ContainsFunc(inside, func(i configurator.Interface) bool { return i.MTU != 0 })
	headers := []string{"INTERFACE", "NETWORK", "ADDRESSES", "GATEWAYS", "MAC"}
	if hasMTU {
		headers = append(headers, "MTU")
	}
	var rows [][]term.Cell
	for _, i := range inside {
		var addresses, gateways []string
		for _, address := range i.Addresses {
			addresses = append(addresses, address.Address)
			gateways = append(gateways, address.Gateway)
		}
		row := []string{i.Name, i.Network, strings.Join(addresses, ", "), join(gateways), i.MAC}
		if hasMTU {
			row = append(row, strconv.Itoa(i.MTU))
		}
		rows = append(rows, term.Cells(row...))
	}
	a.out.Table(headers, rows)
}

func (a *app) printPorts(ports []portmap.Mapping) {
	if len(ports) == 0 {
		return
	}
	var rows [][]term.Cell
	for _, i := range portItems(ports) {
		from, to := i.ends()
		rows = append(rows, term.Cells(from, to, i.protocols, i.Label))
	}
	a.out.Printf("\n")
	a.out.Table([]string{"HOST PORT", "PORT", "PROTOCOL", "LABEL"}, rows)
}
