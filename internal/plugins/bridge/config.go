package bridge

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/plugins/veth"
)

// defaultBridge is the reference plugin's default.
const defaultBridge = "cni0"

// config has the keys of the reference plugin.
type config struct {
	sdk.Common
	Bridge           string  `json:"bridge"`
	IsGateway        bool    `json:"isGateway"`
	IsDefaultGateway bool    `json:"isDefaultGateway"`
	ForceAddress     bool    `json:"forceAddress"`
	IPMasq           bool    `json:"ipMasq"`
	IPMasqBackend    *string `json:"ipMasqBackend"`
	// IPMasqExcept are networks to which the plugin does not masquerade. The
	// reference plugin ignores the key.
	IPMasqExcept              []netip.Prefix `json:"ipMasqExcept"`
	MTU                       int            `json:"mtu"`
	HairpinMode               bool           `json:"hairpinMode"`
	PromiscMode               bool           `json:"promiscMode"`
	Vlan                      int            `json:"vlan"`
	VlanTrunk                 []*trunk       `json:"vlanTrunk"`
	PreserveDefaultVlan       bool           `json:"preserveDefaultVlan"`
	MacSpoofChk               bool           `json:"macspoofchk"`
	EnableDAD                 bool           `json:"enabledad"`
	DisableContainerInterface bool           `json:"disableContainerInterface"`
	PortIsolation             bool           `json:"portIsolation"`
	// SourceGuard drops frames from the container whose source is not its own; default
	// true. The reference plugin ignores the key.
	SourceGuard *bool `json:"sourceGuard"`
	// Fragments false drops fragments of IP packets from the container; default true. The reference
	// plugin ignores the key.
	Fragments *bool `json:"fragments"`
	// AcceptRA has the container accept router advertisements, in addition to the addresses of IPAM. The reference
	// plugin ignores the key.
	AcceptRA bool `json:"acceptRA"`
}

// bridge is the plugin.
type bridge struct {
	config
	veth.Verbs
	vlans []vlanRange // from vlanTrunk
	// unread reports whether the configuration could not be read. DEL then removes
	// everything that the plugin may have created.
	unread bool
}

// New implements sdk.Factory.
func New(conf []byte) (sdk.Plugin, error) {
	b := &bridge{config: config{Bridge: defaultBridge}}
	decodeErr := sdk.Decode(conf, &b.config)
	b.unread = decodeErr != nil && !sdk.IsUnknownKey(decodeErr)
	b.Keys, b.Compile = &b.Common, b.compile
	var ipamErr error
	b.IPAM, ipamErr = veth.IPAMOf(&b.Common)
	if b.IsDefaultGateway {
		b.IsGateway = true
	}
	b.MTU = max(b.MTU, 0) // the reference plugin ignores a negative MTU, too
	b.Rules = veth.Rules{Network: b.Name, Masquerade: veth.Masquerade{
		On: b.unread || b.IPMasq && b.IPAM != "", Backend: b.IPMasqBackend, Network: b.Name, Except: b.IPMasqExcept,
	}}
	if b.unread || b.guardsSources() {
		b.Rules.Guard = b.guardedPorts
	}
	return b, sdk.FirstError(decodeErr, ipamErr, b.Rules.Masquerade.ValidateExcept(), b.validate())
}

// validate rejects invalid values and combinations.
func (b *bridge) validate() error {
	if err := names.ValidateNewInterface(b.Bridge); err != nil {
		return fmt.Errorf("name %q of the bridge: %w", b.Bridge, err)
	}
	switch {
	case b.Vlan < 0 || b.Vlan > 4094:
		return fmt.Errorf("invalid VLAN ID %d (must be between 0 and 4094)", b.Vlan)
	case b.IPAM != "" && b.DisableContainerInterface:
		return errors.New("cannot use IPAM when DisableContainerInterface flag is set")
	case b.AcceptRA && b.DisableContainerInterface:
		return errors.New(`"acceptRA" needs the container's interface: remove "disableContainerInterface"`)
	case b.dropsFragments() && !b.guardsSources():
		return errors.New(`"fragments": false needs the source guard: remove "sourceGuard": false`)
	case b.HairpinMode && b.PromiscMode:
		return errors.New("cannot set hairpin mode and promiscuous mode at the same time")
	}
	var err error
	b.vlans, err = ranges(b.VlanTrunk)
	return sdk.FirstError(err, veth.ValidateMTU(b.MTU))
}

var errPoliced = errors.New(`"acceptRA" and the plugin "policy" exclude each other, because policies know only the addresses of IPAM: remove one of them`)

// Policed implements sdk.Policed.
func (b *bridge) Policed() error {
	if b.AcceptRA {
		return errPoliced
	}
	return nil
}

// mac returns the hardware address of the container's end. args.cni overrides CNI_ARGS,
// and runtimeConfig overrides both.
func (b *bridge) mac(c *sdk.CmdArgs) (net.HardwareAddr, error) {
	var env struct {
		types.CommonArgs
		MAC types.UnmarshallableString
	}
	if err := sdk.LoadArgs(c.Args, &env); err != nil {
		return nil, err
	}
	var args struct {
		Mac string `json:"mac"`
	}
	if err := b.CNIArgs(&args); err != nil {
		return nil, err
	}
	return veth.MAC(&b.Common, cmp.Or(args.Mac, string(env.MAC)))
}
