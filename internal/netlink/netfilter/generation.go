package netfilter

import (
	"encoding/binary"
	"errors"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// generation is the number of the current nftables ruleset of the host, which every change raises. Lists that take
// the kernel more than one message can have holes; they have none if the generation is the same before and after.
func generation() (uint32, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	const nfgenmsgLength = 4
	replies, err := conn.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN),
			Flags: netlink.Request,
		},
		Data: make([]byte, nfgenmsgLength),
	})
	if err != nil {
		return 0, err
	}
	for _, reply := range replies {
		if len(reply.Data) < nfgenmsgLength {
			continue
		}
		attributes, err := netlink.NewAttributeDecoder(reply.Data[nfgenmsgLength:])
		if err != nil {
			return 0, err
		}
		attributes.ByteOrder = binary.BigEndian
		for attributes.Next() {
			if attributes.Type() == unix.NFTA_GEN_ID {
				return attributes.Uint32(), nil
			}
		}
	}
	return 0, errors.New("kernel tells no ruleset generation")
}
