package tuning

import (
	"fmt"
	"math"
	"net"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// defaultDataDir is the directory of backups, which is also the reference
// plugin's.
const defaultDataDir = "/run/cni/tuning"

// config is the plugin's configuration.
type config struct {
	sdk.Common
	DataDir  string  `json:"dataDir"`
	Sysctl   sysctls `json:"sysctl"`
	MAC      string  `json:"mac"`
	Promisc  bool    `json:"promisc"`
	MTU      int     `json:"mtu"`
	Allmulti *bool   `json:"allmulti"`
	TxQLen   *int    `json:"txQLen"`

	runtime  runtimeConfig
	args     cniArgs
	unplaced error // why DataDir is not known
}

// runtimeConfig is the capability arguments.
type runtimeConfig struct {
	MAC string `json:"mac"`
}

// cniArgs is args.cni, which overrides all other settings.
type cniArgs struct {
	Sysctl   sysctls `json:"sysctl"`
	MAC      *string `json:"mac"`
	Promisc  *bool   `json:"promisc"`
	MTU      *int    `json:"mtu"`
	Allmulti *bool   `json:"allmulti"`
	TxQLen   *int    `json:"txQLen"`
}

// envArgs are the keys of CNI_ARGS. The field name is the key.
type envArgs struct {
	types.CommonArgs
	MAC types.UnmarshallableString
}

// New implements sdk.Factory.
func New(conf []byte) (sdk.Plugin, error) {
	t := &tuning{}
	unknown := sdk.Decode(conf, &t.config)
	_, t.unplaced = sdk.DataDir(conf)
	if t.DataDir == "" {
		t.DataDir = defaultDataDir
	}
	return t, sdk.FirstError(unknown, t.Runtime(&t.runtime), t.CNIArgs(&t.args))
}

// settings are the settings of one command, merged from all sources.
type settings struct {
	sysctls []sysctl
	link    attributes
}

// settings merges the settings of all sources. In ascending priority: the
// configuration, CNI_ARGS, runtimeConfig, args.cni.
func (c *config) settings(args string) (*settings, error) {
	mac := c.MAC
	var env envArgs
	if err := sdk.LoadArgs(args, &env); err != nil {
		return nil, fmt.Errorf("CNI_ARGS: %w", err)
	}
	if env.MAC != "" {
		mac = string(env.MAC)
	}
	if c.runtime.MAC != "" {
		mac = c.runtime.MAC
	}
	mac = override(mac, c.args.MAC)
	s := &settings{sysctls: c.Sysctl.with(c.args.Sysctl)}
	s.link.MTU = override(c.MTU, c.args.MTU)
	s.link.Allmulti = override(c.Allmulti, optional(c.args.Allmulti))
	s.link.TxQLen = override(c.TxQLen, optional(c.args.TxQLen))
	if on := override(c.Promisc, c.args.Promisc); on {
		s.link.Promisc = &on
	}
	if err := s.link.setMAC(mac); err != nil {
		return nil, sdk.Invalid(err)
	}
	return s, sdk.Invalid(s.link.validate())
}

// override returns value, or what by points to if it is not nil.
func override[T any](value T, by *T) T {
	if by == nil {
		return value
	}
	return *by
}

// optional returns a pointer to p, or nil if p is nil, so that override can
// replace a pointer.
func optional[T any](p *T) **T {
	if p == nil {
		return nil
	}
	return &p
}

// setMAC parses a MAC and stores it in the kernel's notation.
func (a *attributes) setMAC(s string) error {
	if s == "" {
		return nil
	}
	mac, err := net.ParseMAC(s)
	if err == nil && len(mac) == 6 { // of an Ethernet interface
		err = names.CheckMAC(mac)
	}
	if err != nil {
		return fmt.Errorf("mac: %w", err)
	}
	a.MAC = mac.String()
	return nil
}

// validate rejects numbers that the kernel would truncate.
func (a *attributes) validate() error {
	if a.MTU < 0 || a.MTU > math.MaxInt32 {
		return fmt.Errorf("mtu %d is out of range", a.MTU)
	}
	if a.TxQLen != nil && (*a.TxQLen < 0 || *a.TxQLen > math.MaxInt32) {
		return fmt.Errorf("txQLen %d is out of range", *a.TxQLen)
	}
	return nil
}
