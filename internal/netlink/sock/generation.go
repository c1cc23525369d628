package sock

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// Generation returns the number of the state of nf_tables in a network namespace. Every
// transaction that changes something, of whichever program, adds one. Packets that add elements do
// not, nor do elements that expire, nor tables that the kernel removes with the socket of their owner.
func Generation(ctx context.Context, kernel Exchanger) (generation uint32, err error) {
	err = Build(AskGeneration, func(r *Requests) error {
		var refused error
		err := kernel.Exchange(ctx, r, func(_ int, payload []byte, err error) {
			generation, refused = GenerationOf(payload), err
		})
		return errors.Join(err, refused)
	})
	return generation, err
}

// AskGeneration appends a request for the number that Generation returns.
func AskGeneration(r *Requests) {
	r.BeginNetfilter("generation of nftables", unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC)
}

// GenerationOf returns the number in the answer to AskGeneration.
func GenerationOf(payload []byte) (generation uint32) {
	EachNetfilterAttribute(payload, func(kind uint16, value []byte) {
		if kind == unix.NFTA_GEN_ID {
			generation = Uint32BE(value)
		}
	})
	return generation
}
