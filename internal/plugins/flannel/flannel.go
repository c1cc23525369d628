package flannel

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/subnetenv"
)

// flannel is the plugin with its configuration, which has the reference plugin's keys.
type flannel struct {
	sdk.Common
	SubnetFile json.RawMessage `json:"subnetFile"`
	DataDir    json.RawMessage `json:"dataDir"`
	Delegate   json.RawMessage `json:"delegate"`

	conf  *subnetenv.Conf // nil if it is invalid
	files files
}

var (
	_ sdk.Repairer     = (*flannel)(nil)
	_ sdk.Disconnecter = (*flannel)(nil)
)

// New implements sdk.Factory. With an invalid configuration, DEL uses the saved one.
func New(conf []byte) (sdk.Plugin, error) {
	p := &flannel{}
	decodeErr := sdk.Decode(conf, p)
	var confErr error
	p.conf, confErr = subnetenv.ParseConf(conf)
	p.files.dir = dataDir(p.DataDir)
	return p, sdk.FirstError(decodeErr, confErr)
}

// dataDir returns the directory of the saved configurations, or "" if the value of the
// key is invalid.
func dataDir(value json.RawMessage) string {
	dir := subnetenv.DefaultDataDir
	if len(value) > 0 && json.Unmarshal(value, &dir) != nil || !filepath.IsAbs(dir) {
		return ""
	}
	return dir
}

// derive returns the delegate with the host's present subnets.
func (p *flannel) derive() (*delegate, error) {
	env, err := subnetenv.ReadEnv(p.conf.SubnetFile)
	if err != nil {
		return nil, sdk.Unavailable(fmt.Errorf("flannel has no subnet for this host: %w", err))
	}
	return p.deriveWith(env)
}

func (p *flannel) deriveWith(env subnetenv.Env) (*delegate, error) {
	text, err := p.conf.Derive(env)
	if err != nil {
		return nil, err
	}
	return parseDelegate(text)
}

// Add implements sdk.Plugin. If an attachment of the container has a file already, a
// failed ADD restores that file.
func (p *flannel) Add(ctx context.Context, c *sdk.CmdArgs) (result *types100.Result, err error) {
	d, err := p.derive()
	if err != nil {
		return nil, err
	}
	before, _ := p.files.read(c.ContainerID)
	err = sdk.Run(ctx,
		sdk.Step{
			Name: "save the delegate's configuration",
			Do:   func(context.Context) error { return p.files.write(c.ContainerID, d.text) },
			Undo: func(context.Context) error { return p.unsave(c, d, before) },
		},
		sdk.Step{Name: "delegate", Do: func(ctx context.Context) error {
			result, err = d.run(ctx, "ADD", c, nil)
			return err
		}},
	)
	if err != nil {
		return nil, err
	}
	return result, nil
}

// unsave undoes the saving. The configuration of a binary stays for the DEL, because
// the binary may not have undone its changes.
func (p *flannel) unsave(c *sdk.CmdArgs, d *delegate, before []byte) error {
	switch {
	case before != nil:
		return p.files.write(c.ContainerID, before)
	case c.InProcess(d.Type):
		return p.files.remove(c.ContainerID)
	}
	return nil
}

// Check implements sdk.Plugin. The reference plugin checks nothing.
func (p *flannel) Check(ctx context.Context, c *sdk.CmdArgs) error {
	previous, err := c.Previous(&p.Common)
	if err != nil {
		return err
	}
	d, err := p.known(c)
	if err == nil {
		_, err = d.run(ctx, "CHECK", c, previous)
	}
	return err
}

// Repair implements sdk.Repairer.
func (p *flannel) Repair(ctx context.Context, c *sdk.CmdArgs) error {
	previous, err := c.Previous(&p.Common)
	if err != nil {
		return err
	}
	d, err := p.known(c)
	if err == nil {
		_, err = d.run(ctx, sdk.Repair, c, previous)
	}
	return err
}

// Disconnect implements sdk.Disconnecter.
func (p *flannel) Disconnect(context.Context, *sdk.CmdArgs) error { return sdk.ErrNeedsDel }

// known returns the delegate of an attachment, from its file or, if that is lost, with
// the host's present subnets.
func (p *flannel) known(c *sdk.CmdArgs) (*delegate, error) {
	s, err := p.saved(c)
	if err != nil || s.delegate != nil {
		return s.delegate, err
	}
	d, err := p.derive()
	if err != nil {
		return nil, fmt.Errorf("the delegate's configuration is lost: %w", err)
	}
	return d, nil
}

// Del implements sdk.Plugin. If the file cannot be read, the attachment is removed all
// the same. If its directory is not known, the file of an attachment that was made is left,
// which Del reports.
func (p *flannel) Del(ctx context.Context, c *sdk.CmdArgs) error {
	previous := c.PreviousOfDel(&p.Common)
	s, readErr := p.saved(c)
	d := s.delegate
	if d == nil {
		var err error
		if d, err = p.reconstruct(previous); err != nil {
			return cmp.Or(readErr, err)
		}
	}
	_, err := d.run(ctx, "DEL", c, previous)
	if err == nil && readErr == nil && !s.foreign {
		err = p.files.remove(c.ContainerID)
	}
	if errors.Is(err, errNoDir) {
		err = nil
		if previous != nil {
			err = &sdk.UnplacedError{What: "the delegate's saved configuration", Err: errNoDir}
		}
	}
	return cmp.Or(err, readErr)
}

// reconstruct returns a delegate whose DEL removes what the lost one may have made. It
// has the subnets of a result, because flanneld may have leased others since, and
// without a result the present ones. Unless the configuration says otherwise, it
// removes masquerading, because flanneld may have begun to masquerade since. An invalid
// configuration, which ADD would refuse, is no obstacle.
func (p *flannel) reconstruct(previous *types100.Result) (*delegate, error) {
	var env subnetenv.Env
	if previous != nil {
		for _, ip := range previous.IPs {
			addr, _ := netip.AddrFromSlice(ip.Address.IP)
			bits, _ := ip.Address.Mask.Size()
			subnet := netip.PrefixFrom(addr.Unmap(), bits).Masked()
			if subnet.Addr().Is4() {
				env.Subnet = subnet
			} else {
				env.IPv6Subnet = subnet
			}
		}
	}
	if !env.Subnet.IsValid() && !env.IPv6Subnet.IsValid() && p.conf != nil {
		if now, err := subnetenv.ReadEnv(p.conf.SubnetFile); err == nil {
			env.Subnet, env.IPv6Subnet = now.Subnet, now.IPv6Subnet
		}
	}
	var err error
	for _, conf := range p.readable() {
		var text []byte
		if text, err = conf.Derive(env); err == nil {
			return parseDelegate(text)
		}
	}
	return nil, fmt.Errorf("the delegate's configuration is lost, and cannot be derived again: %w", err)
}

// readable returns the configuration if it is valid, then one that has only what a DEL
// needs, and then one that does not name the delegate: it was not running, or the bridge
// finds what it made by its owner.
func (p *flannel) readable() []*subnetenv.Conf {
	var list []*subnetenv.Conf
	if p.conf != nil {
		list = append(list, p.conf)
	}
	var ipam struct {
		Type    string `json:"type,omitempty"`
		DataDir any    `json:"dataDir,omitempty"`
	}
	_ = json.Unmarshal(p.IPAM, &ipam) // what can be read of it
	if names.ValidatePluginType(ipam.Type) != nil {
		ipam.Type = ""
	}
	if len(p.IPAM) > 0 {
		if _, err := sdk.DataDir(p.IPAM); err != nil {
			ipam.DataDir = false // with which host-local reports that it does not know the place of the lease
		}
	}
	needed := map[string]any{"name": p.Name, "cniVersion": p.CNIVersion, "ipam": ipam, "delegate": p.Delegate}
	for range 2 {
		if text, err := json.Marshal(needed); err == nil {
			if conf, err := subnetenv.ParseConf(text); err == nil {
				list = append(list, conf)
			}
		}
		delete(needed, "delegate")
	}
	return list
}

// Status implements sdk.Plugin.
func (p *flannel) Status(ctx context.Context, c *sdk.CmdArgs) error {
	d, err := p.derive()
	if err != nil {
		return err
	}
	_, err = d.run(ctx, "STATUS", c, nil)
	return err
}
