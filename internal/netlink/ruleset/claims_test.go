package ruleset

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/names"
)

// portModel is the tables as a map, and who has requested the host port in which order.
type portModel struct {
	in  map[place]element
	all []*portRequest
	on  terms
}

type portRequest struct {
	element
	since int
}

var modelAddresses = []string{"", "192.0.2.1", "192.0.2.2"}

// request returns the mapping of an attachment with a number, in the Order that a record would have.
func (m *portModel) request(t *testing.T, number int, address string) *portRequest {
	e := &Elements{Owner: names.Owner{Network: "net", ID: fmt.Sprint("c", number), IfName: "eth0"}, MayWait: true}
	mapping := Mapping{Protocol: 6, HostPort: 80, To: netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:80", number%250+1))}
	if address != "" {
		mapping.HostIP = netip.MustParseAddr(address)
	}
	e.Mappings = []Mapping{mapping}
	if m.on.ordered {
		e.Order = 1
		for _, other := range m.all {
			if other.set != ip.hostIPPorts || address == "" || other.mapping().HostIP == mapping.HostIP {
				e.Order = max(e.Order, int(other.order)+2)
			}
		}
	}
	list, err := e.elements()
	require.NoError(t, err)
	return &portRequest{list[0], number}
}

// claims is Ruleset.claims.
func (m *portModel) claims() (list []claim) {
	for p, e := range m.in {
		if p.set != ip.standby {
			list = append(list, claim{element: e})
		}
	}
	for p, e := range m.in {
		if p.set == ip.standby {
			list = append(list, claim{e.active(), uint32(p.key[12]) | uint32(p.key[13])<<8})
		}
	}
	return list
}

// settle makes a change, in which no key may be added twice nor be removed that is not there.
func (m *portModel) settle(t *testing.T, n *portChange) {
	t.Helper()
	n.on = m.on
	var c change
	p := slices.Concat(n.join, n.leave)[0].hostPort()
	_, err := c.settlePort(m.claims(), p, n)
	require.NoError(t, err)
	for _, e := range c.remove {
		require.Contains(t, m.in, e.place())
		delete(m.in, e.place())
	}
	for _, e := range c.add {
		require.NotContains(t, m.in, e.place())
		m.in[e.place()] = e
	}
}

// leadsTo returns the owner to which a packet to an address goes, as the rules of the chain decide.
func (m *portModel) leadsTo(address string) string {
	for _, host := range []string{address, ""} {
		for p, e := range m.in {
			if p.set != ip.standby && (e.set == ip.hostPorts) == (host == "") && (host == "" || e.mapping().HostIP.String() == host) {
				return e.owner
			}
		}
	}
	return ""
}

// wanted returns the owner to which a packet should go: the oldest that has requested it. Where a mapping of
// one address takes precedence, the oldest of those comes first.
func (m *portModel) wanted(address string) string {
	matches := func(r *portRequest) bool {
		return r.set == ip.hostPorts || r.mapping().HostIP.String() == address
	}
	var best *portRequest
	for _, r := range m.all {
		narrower := m.on.mayNarrow && best != nil && best.set != r.set
		switch {
		case !matches(r):
		case best == nil, narrower && r.set == ip.hostIPPorts, !narrower && r.since < best.since:
			best = r
		}
	}
	if best == nil {
		return ""
	}
	return best.owner
}

func (m *portModel) require(t *testing.T) {
	t.Helper()
	for _, address := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"} {
		require.Equal(t, m.wanted(address), m.leadsTo(address), address)
	}
	if len(m.all) == 0 {
		require.Empty(t, m.in)
	}
}

// TestPortsOfSuccessors: whichever attachments come and go, also again, a packet to a host port goes to the
// oldest one that has requested it, and nothing is left of the others.
func TestPortsOfSuccessors(t *testing.T) {
	for name, on := range map[string]terms{"records": {mayWait: true, ordered: true}, "drop-ins": {mayWait: true, mayNarrow: true}} {
		for seed := range 300 {
			t.Run(fmt.Sprint(name, " ", seed), func(t *testing.T) {
				random := rand.New(rand.NewPCG(uint64(seed), 1))
				m := &portModel{in: map[place]element{}, on: on}
				for number := range 60 {
					switch {
					case len(m.all) < 5 && (len(m.all) == 0 || random.IntN(2) == 0):
						r := m.request(t, number, modelAddresses[random.IntN(3)])
						m.settle(t, &portChange{join: []element{r.element}})
						m.all = append(m.all, r)
					case random.IntN(3) == 0:
						m.settle(t, &portChange{join: []element{m.all[random.IntN(len(m.all))].element}}) // a repair
					default:
						i := random.IntN(len(m.all))
						m.settle(t, &portChange{leave: []element{m.all[i].element}})
						m.all = slices.Delete(m.all, i, i+1)
					}
					m.require(t)
				}
				for len(m.all) > 0 {
					m.settle(t, &portChange{leave: []element{m.all[0].element}})
					m.all = m.all[1:]
					m.require(t)
				}
			})
		}
	}
}

// TestPortsOfSuccessorsAfterAFlush: in whichever order attachments with records are restored, the oldest gets
// its host port back, also from one that came after the flush.
func TestPortsOfSuccessorsAfterAFlush(t *testing.T) {
	for seed := range 300 {
		random := rand.New(rand.NewPCG(uint64(seed), 2))
		m := &portModel{in: map[place]element{}, on: terms{mayWait: true, ordered: true}}
		for number := range 5 {
			m.all = append(m.all, m.request(t, number, ""))
		}
		for _, i := range random.Perm(len(m.all)) {
			m.settle(t, &portChange{join: []element{m.all[i].element}})
		}
		m.require(t)
		for len(m.all) > 0 {
			i := random.IntN(len(m.all))
			m.settle(t, &portChange{leave: []element{m.all[i].element}})
			m.all = slices.Delete(m.all, i, i+1)
			m.require(t)
		}
	}
}

// TestPortsThatMustNotWait: a mapping that may not wait is refused, and one that is there already stays.
func TestPortsThatMustNotWait(t *testing.T) {
	m := &portModel{in: map[place]element{}, on: terms{mayWait: true, ordered: true}}
	a, b := m.request(t, 1, ""), m.request(t, 2, "")
	m.settle(t, &portChange{join: []element{a.element}})
	n := &portChange{join: []element{b.element}, on: terms{ordered: true}}
	var c change
	_, err := c.settlePort(m.claims(), b.hostPort(), n)
	require.ErrorIs(t, err, ErrPortTaken)
	n.on.mayWait = true
	m.settle(t, n)
	n.on.mayWait = false
	_, err = c.settlePort(m.claims(), b.hostPort(), n)
	require.NoError(t, err)
	for number := 3; number < 2+maxStandby; number++ {
		m.settle(t, &portChange{join: []element{m.request(t, number, "").element}})
	}
	_, err = c.settlePort(m.claims(), b.hostPort(), &portChange{join: []element{m.request(t, 100, "").element}, on: m.on})
	require.ErrorIs(t, err, ErrPortTaken, "the queue is bounded")
}
