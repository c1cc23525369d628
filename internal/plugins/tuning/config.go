package tuning

import (
	"fmt"
	"math"
	"net"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// defaultDataDir is where backups are, also those of the reference plugin.
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

	runtime runtimeConfig
	args    cniArgs
}

// runtimeConfig are the capability arguments.
type runtimeConfig struct {
	MAC string `json:"mac"`
}

// cniArgs are args.cni, which wins over everything else.
type cniArgs struct {
	Sysctl   sysctls `json:"sysctl"`
	MAC      *string `json:"mac"`
	Promisc  *bool   `json:"promisc"`
	MTU      *int    `json:"mtu"`
	Allmulti *bool   `json:"allmulti"`
	TxQLen   *int    `json:"txQLen"`
}

// envArgs are CNI_ARGS. The name is the key.
type envArgs struct {
	types.CommonArgs
	MAC types.UnmarshallableString
}

// New is the plugin's Factory.
func New(conf []byte) (sdk.Plugin, error) {
	t := &tuning{}
	unknown := sdk.Decode(conf, &t.config)
	if t.DataDir == "" {
		t.DataDir = defaultDataDir
	}
	return t, sdk.FirstError(unknown, t.Runtime(&t.runtime), t.CNIArgs(&t.args))
}

// settings are what one call sets, from wherever it was asked for.
type settings struct {
	sysctls []sysctl
	link    attributes
}

// settings puts together what the configuration and the call ask for: the
// configuration < CNI_ARGS < runtimeConfig < args.cni.
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
		return nil, err
	}
	return s, s.link.validate()
}

// override is what is there, or the value that takes its place.
func override[T any](value T, by *T) T {
	if by == nil {
		return value
	}
	return *by
}

// optional makes a pointer an optional value itself.
func optional[T any](p *T) **T {
	if p == nil {
		return nil
	}
	return &p
}

// setMAC reads a MAC as people write it, and keeps it as the kernel's is written.
func (a *attributes) setMAC(s string) error {
	if s == "" {
		return nil
	}
	mac, err := net.ParseMAC(s)
	if err != nil {
		return fmt.Errorf("mac: %w", err)
	}
	a.MAC = mac.String()
	return nil
}

// validate refuses numbers that the kernel would take for others.
func (a *attributes) validate() error {
	if a.MTU < 0 || a.MTU > math.MaxInt32 {
		return fmt.Errorf("mtu: %d is none", a.MTU)
	}
	if a.TxQLen != nil && (*a.TxQLen < 0 || *a.TxQLen > math.MaxInt32) {
		return fmt.Errorf("txQLen: %d is none", *a.TxQLen)
	}
	return nil
}
