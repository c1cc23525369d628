package iptables

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// kernel reads rules of nf_tables directly from the kernel.
type kernel struct{ sockets sock.Pool }

func newKernel() kernel { return kernel{sock.Pool{Protocol: unix.NETLINK_NETFILTER}} }

// sameRules reads the rules that now have the handles of the given rules, in one system
// call if possible.
func (k *kernel) sameRules(f Family, rules []rule) (same []rule, err error) {
	err = sock.Build(func(r *sock.Requests) {
		for i := range rules {
			question(r, f, rules[i].chain, 0)
			r.Uint64BE(unix.NFTA_RULE_HANDLE, rules[i].handle)
		}
	}, func(r *sock.Requests) error {
		var failed error
		err := k.sockets.Exchange(context.Background(), r, func(_ int, payload []byte, err error) {
			if err != nil {
				failed = err
				return
			}
			same = append(same, parseRule(payload))
		})
		if err == nil {
			err = failed
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	return same, nil
}

// rulesOf reads all rules of a chain; none if the chain does not exist.
func (k *kernel) rulesOf(f Family, chain string) (rules []rule, err error) {
	err = sock.Build(func(r *sock.Requests) { question(r, f, chain, unix.NLM_F_DUMP) }, func(r *sock.Requests) error {
		return k.sockets.Dump(context.Background(), r, func(payload []byte) error {
			rules = append(rules, parseRule(payload))
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list rules of chain %s: %w", chain, err)
	}
	return rules, nil
}

func (k *kernel) close() error { return k.sockets.Close() }
