package trace

import (
	"context"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/cmd/internal/trace/probe"
)

// connection shows how the kernel tracks the probe.
func (f *tracer) connection(context.Context) error {
	const name = "conntrack"
	if !f.sent {
		return nil
	}
	t := f.result.Tracked
	if t == nil {
		if at, out := passed(f.result.Host, probe.Request, probe.Postrouting); out {
			f.add(name, Note, "", "no longer or not tracked; it leaves as %s to %s", at.Source, at.Destination)
			return nil
		}
		if legacyTables(f.Address) {
			return f.ends(name, legacyRemedy(f.Address), "the probe is lost before the hook postrouting, probably by a rule of legacy iptables, which cannot be traced")
		}
		return f.ends(name, "nft list hooks shows what else sees packets",
			"the probe is lost before the hook postrouting, and no rule of nftables dropped it")
	}
	f.add(name, OK, "", "tracked, with answers from %s to %s", t.AnswersFrom, t.AnswersTo)
	return nil
}

// arrived looks whether the probe has reached the network namespace of the allocation.
func (f *tracer) arrived(context.Context) error {
	if !f.sent {
		return nil
	}
	if _, came := passed(f.result.Inside, probe.Request, probe.Prerouting); !came {
		return f.ends("link", "ip neigh show "+f.Address.String()+"; tc filter show on the links; nft list ruleset bridge",
			"the probe leaves the host and does not arrive inside: either no interface has the address %s, or traffic control or a rule of a bridge drops it", f.Address)
	}
	if _, came := passed(f.result.Inside, probe.Request, probe.Input); !came && !f.droppedInside() {
		return f.ends("interface inside", "in the namespace: sysctl net.ipv4.conf.all.rp_filter; ip route get "+f.path.From.Addr().String(),
			"the namespace drops the probe before its hook input: reverse path filtering, or a rule of legacy iptables")
	}
	return nil
}

func (f *tracer) droppedInside() bool {
	for i := range f.result.Inside {
		if p := &f.result.Inside[i]; p.Kind == probe.Request && !p.Own && p.Drops() {
			return true
		}
	}
	return false
}

// answer looks at the answer to the probe. The answer to a datagram is not awaited.
func (f *tracer) answer(context.Context) error {
	const name = "answer"
	if !f.sent {
		return nil
	}
	took := f.result.Elapsed.Round(10 * time.Microsecond)
	if f.protocol == unix.IPPROTO_UDP {
		f.add(name, OK, "", "the datagram arrives after %s; it was dropped in front of the process", took)
		return nil
	}
	sent, is := passed(f.result.Inside, probe.Answer, probe.Postrouting)
	back, atHost := passed(f.result.Host, probe.Answer, probe.Prerouting)
	leaving := probe.Postrouting
	if f.path.Link == "" {
		leaving = probe.Input
	}
	_, left := passed(f.result.Host, probe.Answer, leaving)
	switch {
	case !is:
		return f.ends(name, "look at the process: its queue of connections can be full (ss -lt), or it ignores this client", "the SYN arrives, and the namespace does not answer it")
	case !sent.Accepts():
		return f.ends(name, "try again if the process has just started; or a rule in the namespace rejects the connection", "the namespace refuses the connection")
	case !atHost:
		return f.ends(name, "tc filter show on the links; nft list ruleset bridge", "the answer leaves the namespace and does not arrive on the host")
	case !left && f.path.Link != "":
		return f.notForwarded(name, back.Source.Addr(), f.path.From.Addr(), f.link())
	case !left && f.path.From.Addr() == netip.IPv6Loopback():
		return f.ends(name, "use 127.0.0.1 or another address of the host", "the host drops the answer: the kernel routes nothing to and from ::1 off the loopback")
	case !left:
		return f.ends(name, "sysctl -a --pattern rp_filter", "the host drops the answer behind its hook prerouting: reverse path filtering, or a rule of legacy iptables")
	}
	f.add(name, OK, "", "the connection is accepted after %s, and was reset", took)
	return nil
}

// link returns the host's interface of the allocation.
func (f *tracer) link() string {
	_, link, _ := routeTo(f.Address) // the path has passed it
	return link
}
