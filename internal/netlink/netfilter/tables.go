package netfilter

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/retry"
)

// kernel makes requests in the network namespace of the calling thread.
var kernel = sock.Here{Protocol: unix.NETLINK_NETFILTER}

// begin begins a request to nf_tables.
func begin(r *sock.Requests, label string, kind, flags uint16, family byte) {
	r.BeginNetfilter(label, unix.NFNL_SUBSYS_NFTABLES, kind, flags, family)
}

// Chain identifies a chain of nftables.
type Chain struct {
	Family      byte // NFPROTO_*
	Table, Name string
}

// AnyExists reports whether the kernel has one of the chains. All are looked up in the
// same generation of the ruleset.
func AnyExists(ctx context.Context, chains ...Chain) (found bool, err error) {
	err = retry.Do(ctx, func() (err error) {
		found, err = anyExists(ctx, chains)
		return err
	})
	if IsUnsupported(err) {
		return false, nil
	}
	return found, err
}

func anyExists(ctx context.Context, chains []Chain) (found bool, err error) {
	err = sock.Build(func(r *sock.Requests) {
		sock.AskGeneration(r)
		for _, c := range chains {
			begin(r, "chain "+c.Name, unix.NFT_MSG_GETCHAIN, 0, c.Family)
			r.CString(unix.NFTA_CHAIN_TABLE, c.Table)
			r.CString(unix.NFTA_CHAIN_NAME, c.Name)
		}
		sock.AskGeneration(r)
	}, func(r *sock.Requests) error {
		var generations []uint32
		var failed error
		err := kernel.Exchange(ctx, r, func(i int, payload []byte, err error) {
			ends := i == 0 || i == r.Len()-1
			switch {
			case !ends && (errors.Is(err, unix.ENOENT) || IsUnsupported(err)): // no such chain or no such family
			case err != nil:
				failed = errors.Join(failed, err)
			case ends:
				generations = append(generations, sock.GenerationOf(payload))
			default:
				found = true
			}
		})
		if err = errors.Join(err, failed); err == nil && generations[0] != generations[1] {
			err = retry.ErrChanged
		}
		return err
	})
	return found, err
}

// chain is a chain of a table as the kernel lists it.
type chain struct {
	name  string
	drops bool // the policy is to drop
}

// chainsOf lists the chains of a table; none if the table does not exist.
func (t Table) chainsOf(ctx context.Context) (chains []chain, err error) {
	err = retry.Do(ctx, func() error {
		chains = nil
		return sock.Build(func(r *sock.Requests) {
			begin(r, "chains", unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, byte(t.family()))
		}, func(r *sock.Requests) error {
			return kernel.Dump(ctx, r, func(payload []byte) error {
				if c, table := readChain(payload); table == t.Name {
					chains = append(chains, c)
				}
				return nil
			})
		})
	})
	if IsUnsupported(err) {
		return nil, nil
	}
	return chains, err
}

func readChain(payload []byte) (c chain, table string) {
	sock.EachNetfilterAttribute(payload, func(kind uint16, value []byte) {
		switch kind {
		case unix.NFTA_CHAIN_TABLE:
			table = sock.String(value)
		case unix.NFTA_CHAIN_NAME:
			c.name = sock.String(value)
		case unix.NFTA_CHAIN_POLICY:
			const drop = 0 // NF_DROP
			c.drops = sock.Uint32BE(value) == drop
		}
	})
	return c, table
}
