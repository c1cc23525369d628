package accept

// nftWatch is the rules of the opening in an iptables on nf_tables.
type nftWatch struct {
	netfilter *netfilter
	family    Family
	rules     []rule
	jumps     int // of rules, those in FORWARD
}

// watch begins to watch what of the opening is there now.
func (n *netfilter) watch(f Family) watch {
	jumps, err := n.rulesOf(f, forward)
	if err != nil {
		return nil // iptables itself will say why
	}
	own, err := n.rulesOf(f, Chain)
	if err != nil {
		return nil
	}
	w := nftWatch{netfilter: n, family: f}
	for _, r := range jumps {
		if r.jump == Chain {
			w.rules = append(w.rules, r)
		}
	}
	w.jumps = len(w.rules)
	w.rules = append(w.rules, own...)
	return w
}

func (w nftWatch) covers(l *listing) bool {
	return w.jumps == count(l.forward, jump) && len(w.rules)-w.jumps == len(l.chain)
}

func (w nftWatch) unchanged() bool {
	now, err := w.netfilter.sameRules(w.family, w.rules)
	if err != nil || len(now) != len(w.rules) {
		return false
	}
	for i, r := range w.rules {
		if now[i] != r {
			return false
		}
	}
	return true
}
