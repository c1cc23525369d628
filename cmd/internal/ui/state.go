package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/addresses"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/subnets"
	"github.com/allocnet/allocnet/portmap"
)

// state is what can be read quickly: everything but the health of the allocations.
type state struct {
	Time time.Time `json:"time"`
	Host string    `json:"host"`
	// Live reports whether there are events.
	Live        bool         `json:"live"`
	Uplinks     []uplink     `json:"uplinks"`
	Networks    []network    `json:"networks"`
	Allocations []allocation `json:"allocations"`
	// Skipped are files of the configuration directory that are not used.
	Skipped []skipped `json:"skipped"`
	// Problems are what could not be read.
	Problems []string `json:"problems"`
}

type skipped struct {
	File   string `json:"file"`
	Reason string `json:"reason"`
}

type network struct {
	Name    string `json:"name"`
	Default bool   `json:"default,omitempty"`
	// File is "" for the embedded network.
	File    string          `json:"file,omitempty"`
	Engine  allocnet.Engine `json:"engine,omitempty"`
	Plugins []string        `json:"plugins,omitempty"`
	Subnets []string        `json:"subnets,omitempty"`
	// Addresses are the numbers of leased and free ones, by family.
	Addresses map[string]client.AddressCounts `json:"addresses,omitempty"`
	// Missing reports that allocations are attached to a network that no file has any more.
	Missing bool `json:"missing,omitempty"`
}

type allocation struct {
	ID           string               `json:"id"`
	Phase        allocnet.Phase       `json:"phase"`
	Acknowledged bool                 `json:"acknowledged,omitempty"`
	NetnsGone    bool                 `json:"netnsGone,omitempty"`
	Engine       allocnet.Engine      `json:"engine"`
	Scope        string               `json:"scope,omitempty"`
	Netns        string               `json:"netns"`
	Args         map[string]string    `json:"args,omitempty"`
	Created      time.Time            `json:"created"`
	Networks     []string             `json:"networks"`
	Address      string               `json:"address,omitempty"`
	AddressIPv6  string               `json:"addressIPv6,omitempty"`
	Interfaces   []allocnet.Interface `json:"interfaces,omitempty"`
	Routes       []allocnet.Route     `json:"routes,omitempty"`
	Ports        []portmap.Mapping    `json:"ports,omitempty"`
	Waiting      []allocnet.PortWait  `json:"waiting,omitempty"`
}

// state reads the records, the networks and the links to the outside.
func (s *Server) state(r *http.Request) (any, error) {
	st := &state{
		Time: time.Now(), Host: hostname(), Live: s.options.Events != nil,
		Networks: []network{}, Allocations: []allocation{}, Skipped: []skipped{}, Problems: []string{},
	}
	records, err := s.options.Service().List(r.Context())
	if err != nil && len(records) == 0 {
		return nil, err
	}
	st.problem(err)
	if st.Uplinks, err = uplinks(); err != nil {
		st.problem(fmt.Errorf("read the routes of the host: %w", err))
	}
	for i := range records {
		st.Allocations = append(st.Allocations, view(&records[i]))
	}
	s.addNetworks(r, st)
	return st, nil
}

// status returns the overview of the host, with the time at which its reading began.
func (s *Server) status(ctx context.Context) (any, error) {
	began := time.Now()
	overview, err := s.options.Status(ctx)
	return struct {
		Time time.Time `json:"time"`
		*client.HostStatus
	}{began, overview}, err
}

// problem notes why something could not be read.
func (st *state) problem(err error) {
	if err != nil {
		st.Problems = append(st.Problems, redact.Bound(redact.Text(err.Error())))
	}
}

// addNetworks adds the networks of the Service, and those that only records know.
func (s *Server) addNetworks(r *http.Request, st *state) {
	read, _ := s.options.Networks() // the Service reports the skipped files
	networks, invalid := s.options.Service().Networks(r.Context())
	for _, f := range invalid {
		if !errors.Is(f.Err, fs.ErrNotExist) || filepath.Ext(f.File) != "" { // the directory need not exist
			st.Skipped = append(st.Skipped, skipped{f.File, redact.Bound(redact.Text(f.Err.Error()))})
		}
	}
	for _, n := range networks {
		one := network{Name: n.Name, Default: n.Default, File: n.File, Engine: n.Engine, Plugins: n.Plugins}
		if i := slices.IndexFunc(read, func(c *conflist.Network) bool { return c.Name == n.Name }); i >= 0 {
			st.problem(one.addAddresses(read[i]))
		}
		st.Networks = append(st.Networks, one)
	}
	for i := range st.Allocations {
		for _, name := range st.Allocations[i].Networks {
			if !slices.ContainsFunc(st.Networks, func(n network) bool { return n.Name == name }) {
				st.Networks = append(st.Networks, network{Name: name, Missing: true})
			}
		}
	}
}

// addAddresses adds the subnets and the numbers of addresses.
func (n *network) addAddresses(c *conflist.Network) error {
	pools, err := subnets.Pools(c)
	if err != nil {
		return err
	}
	for _, p := range pools {
		if subnet := p.Subnet.String(); !slices.Contains(n.Subnets, subnet) {
			n.Subnets = append(n.Subnets, subnet)
		}
	}
	counts, err := addresses.Count(c)
	for family, u := range counts {
		if n.Addresses == nil {
			n.Addresses = map[string]client.AddressCounts{}
		}
		n.Addresses[family] = client.AddressCounts(u)
	}
	return err
}

// view returns the part of a record that the page shows. Configurations and results of
// plugins are not among it.
func view(r *allocnet.Record) allocation {
	a := allocation{
		ID: r.ID, Phase: r.Phase, Acknowledged: r.Acknowledged, NetnsGone: r.NetnsGone, Engine: r.Engine, Scope: r.Scope,
		Netns: r.Netns, Args: r.Args, Created: r.Created, Networks: []string{}, Ports: r.Ports, Waiting: r.Waiting,
	}
	for _, n := range r.Networks {
		if !slices.Contains(a.Networks, n.Network) {
			a.Networks = append(a.Networks, n.Network)
		}
	}
	if st := r.Status; st != nil {
		a.Address, a.AddressIPv6, a.Interfaces, a.Routes = st.Address, st.AddressIPv6, st.Interfaces, st.Routes
	}
	return a
}

// lease is a lease of host-local.
type lease struct {
	Network   string `json:"network"`
	Address   string `json:"address"`
	ID        string `json:"id"` // of the container; "" if the lease is empty
	Interface string `json:"interface,omitempty"`
}

// leases reads the leases of all networks.
func (s *Server) leases(*http.Request) (any, error) {
	answer := struct {
		Leases   []lease  `json:"leases"`
		Problems []string `json:"problems"`
	}{Leases: []lease{}, Problems: []string{}}
	networks, _ := s.options.Networks()
	for _, n := range networks {
		stores, err := addresses.Stores(n)
		for _, store := range stores {
			found, listErr := store.List()
			err = cmp.Or(err, listErr)
			for _, l := range found {
				answer.Leases = append(answer.Leases, lease{n.Name, l.Addr.String(), l.Owner.ID, l.Owner.IfName})
			}
		}
		if err != nil {
			answer.Problems = append(answer.Problems, redact.Bound(redact.Text(err.Error())))
		}
	}
	return answer, nil
}

// errQuery is the error of an invalid query.
var errQuery = errors.New("invalid query")

// maxHistory bounds the operations of one answer.
const maxHistory = 100

// history reads the last operations: those of one allocation with the query id.
func (s *Server) history(r *http.Request) (any, error) {
	q := allocnet.HistoryQuery{ID: r.URL.Query().Get("id"), Limit: 20}
	if text := r.URL.Query().Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxHistory {
			return nil, fmt.Errorf("%w: limit must be a number from 1 to %d", errQuery, maxHistory)
		}
		q.Limit = n
	}
	entries, err := s.options.Service().History(r.Context(), q)
	if entries == nil {
		entries = []allocnet.HistoryEntry{}
	}
	return entries, err
}
