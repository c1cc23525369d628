package netfilter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// bridgeSwitches has the switches of br_netfilter for all bridges of a network namespace.
const bridgeSwitches = "/proc/sys/net/bridge"

var (
	// ErrNoBridgeNetfilter: the kernel has no br_netfilter, or cannot load it.
	ErrNoBridgeNetfilter = errors.New("the kernel cannot apply rules to packets within a bridge: load its module with `modprobe br_netfilter`, or use a kernel with CONFIG_BRIDGE_NETFILTER")

	loading sync.Mutex
)

// HasBridgeNetfilter reports whether the kernel has br_netfilter, built in or loaded.
func HasBridgeNetfilter() bool {
	_, err := os.Lstat(filepath.Join(bridgeSwitches, "bridge-nf-call-iptables"))
	return !errors.Is(err, fs.ErrNotExist)
}

// MayHaveBridgeNetfilter returns ErrNoBridgeNetfilter if br_netfilter is neither loaded nor among the modules
// of this kernel. Where these cannot be seen, as in a container, only an attempt to load it shows that.
func MayHaveBridgeNetfilter() error {
	if HasBridgeNetfilter() {
		return nil
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return os.NewSyscallError("uname", err)
	}
	modules, err := os.ReadFile(filepath.Join("/lib/modules", unix.ByteSliceToString(name.Release[:]), "modules.dep"))
	disabled, _ := os.ReadFile("/proc/sys/kernel/modules_disabled")
	if strings.TrimSpace(string(disabled)) == "1" || err == nil && !strings.Contains(string(modules), "/br_netfilter.ko") {
		return ErrNoBridgeNetfilter
	}
	return nil
}

// LoadBridgeNetfilter has the kernel load br_netfilter, unless it has it. By default, the module applies the
// rules of IP to the packets of all bridges of the host. What has loaded it for some of them switches that off:
// the others stay as they were, and a bridge has a switch of its own.
//
// It does so only in the network namespace of the first process, which has the bridges of the host: elsewhere,
// it would leave the switches of the host on.
//
// A process without CAP_SYS_MODULE cannot load a module, but the kernel loads this one for the match physdev of
// iptables. The transaction with that match fails at its end, so that it changes nothing.
func LoadBridgeNetfilter(ctx context.Context) error {
	loading.Lock()
	defer loading.Unlock()
	if HasBridgeNetfilter() {
		return nil
	}
	if here, err := isHost(); err != nil || !here {
		return errors.Join(ErrNoBridgeNetfilter, err)
	}
	err := sock.Lend(unix.NETLINK_NETFILTER, func(s *sock.Socket) error { return s.Transaction(ctx, askForBridgeNetfilter) })
	if !HasBridgeNetfilter() {
		return fmt.Errorf("%w (%w)", ErrNoBridgeNetfilter, err)
	}
	for _, name := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables", "bridge-nf-call-arptables"} {
		if err := os.WriteFile(filepath.Join(bridgeSwitches, name), []byte("0"), 0); err != nil {
			return fmt.Errorf("restrict br_netfilter to bridges with policies: %w", err)
		}
	}
	return nil
}

// isHost reports whether the thread is in the network namespace of the first process.
func isHost() (bool, error) {
	var here, host unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &here); err != nil {
		return false, fmt.Errorf("find own network namespace: %w", err)
	}
	if err := unix.Stat("/proc/1/ns/net", &host); err != nil {
		return false, fmt.Errorf("find the network namespace of the host: %w", err)
	}
	return here.Dev == host.Dev && here.Ino == host.Ino, nil
}

// askForBridgeNetfilter appends a table with a rule that uses physdev, and the removal of a table that does not exist.
func askForBridgeNetfilter(b *sock.Requests) {
	const table, chain = "allocnet_physdev", "physdev"
	add := func(kind, flags uint16, attributes func()) {
		begin(b, "load br_netfilter", kind, flags, unix.NFPROTO_IPV4)
		attributes()
	}
	add(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, func() { b.CString(unix.NFTA_TABLE_NAME, table) })
	add(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, func() {
		b.CString(unix.NFTA_CHAIN_TABLE, table)
		b.CString(unix.NFTA_CHAIN_NAME, chain)
	})
	add(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE, func() {
		b.CString(unix.NFTA_RULE_TABLE, table)
		b.CString(unix.NFTA_RULE_CHAIN, chain)
		list := b.Nest(unix.NFTA_RULE_EXPRESSIONS)
		b.Attribute(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, physdev())
		b.End(list)
	})
	add(unix.NFT_MSG_DELTABLE, 0, func() { b.CString(unix.NFTA_TABLE_NAME, table+"_none") })
}

// physdev returns the match for packets that arrived over a bridge.
func physdev() []byte {
	const (
		arrived = 8 // XT_PHYSDEV_OP_ISIN
		bitmask = 65
		size    = 72 // of struct xt_physdev_info, with its padding
	)
	info := make(xt.Unknown, size)
	info[bitmask] = arrived
	data, err := expr.Marshal(unix.NFPROTO_IPV4, &expr.Match{Name: "physdev", Info: &info})
	if err != nil {
		panic(err)
	}
	return data
}
