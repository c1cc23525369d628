package iptables

import "slices"

// snapshot is what the kernel itself shows of the forward-accept rule of a family at
// one moment. A comparison takes microseconds.
type snapshot interface {
	// unchanged reports whether the kernel still shows the same rules.
	unchanged() bool
	// shows reports whether the snapshot contains all rules of a state that was
	// listed after it. If so, the kernel has that state for as long as the snapshot
	// is unchanged.
	shows(*state) bool
}

// nftSnapshot contains the rules of an iptables on nf_tables.
type nftSnapshot struct {
	kernel *kernel
	family Family
	rules  []rule
	jumps  int // the number of rules in FORWARD, which come first
}

// snapshot reads the existing parts of the forward-accept rule from nf_tables; nil if
// they cannot be read. In that case iptables, which runs next, reports the reason.
func (k *kernel) snapshot(f Family) snapshot {
	jumps, err := k.rulesOf(f, forwardChain)
	if err != nil {
		return nil
	}
	own, err := k.rulesOf(f, AcceptChain)
	if err != nil {
		return nil
	}
	s := nftSnapshot{kernel: k, family: f}
	for _, r := range jumps {
		if r.jump == AcceptChain {
			s.rules = append(s.rules, r)
		}
	}
	s.jumps = len(s.rules)
	s.rules = append(s.rules, own...)
	return s
}

func (s nftSnapshot) shows(l *state) bool {
	return s.jumps == count(l.forward, jump) && len(s.rules)-s.jumps == len(l.chain)
}

func (s nftSnapshot) unchanged() bool {
	now, err := s.kernel.sameRules(s.family, s.rules)
	return err == nil && slices.Equal(now, s.rules)
}
