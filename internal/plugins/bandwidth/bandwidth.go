package bandwidth

import (
	"context"
	"fmt"
	"net"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// bandwidth is the plugin with its configuration.
type bandwidth struct {
	config
	limit Limits
}

// New implements sdk.Factory.
func New(conf []byte) (sdk.Plugin, error) {
	b := &bandwidth{}
	unknown := sdk.Decode(conf, &b.config)
	runtime, err := b.runtimeLimits()
	b.limit = b.limits(runtime)
	return b, sdk.FirstError(unknown, err)
}

// addition is the state of one ADD, or Limit, that sets a limit.
type addition struct {
	host    *rtnl.Host
	owner   names.Owner
	veth    netlink.Link // the host's end of the veth
	ifbName string
	ifbMAC  net.HardwareAddr // nil lets the kernel choose it
	ifb     netlink.Link     // nil as long as there is none
}

// Add implements sdk.Plugin. It adds the ifb to the interfaces of prevResult.
func (b *bandwidth) Add(ctx context.Context, c *sdk.CmdArgs) (*types100.Result, error) {
	if err := b.checkVersion(); err != nil {
		return nil, err
	}
	ingress, egress, err := b.limit.buckets()
	if err != nil {
		return nil, err
	}
	result, err := c.Previous(&b.Common)
	if err != nil {
		return nil, err
	}
	if result == nil {
		return nil, errNotChained
	}
	if ingress == nil && egress == nil {
		return result, nil
	}
	veth, err := hostEnd(c, result)
	if err != nil {
		return nil, err
	}
	a := &addition{
		host: c.Host.Kernel, owner: c.Owner(b.Name), veth: veth, ifbName: ifbName(b.Name, c.ContainerID),
	}
	if err := sdk.Run(ctx, a.steps(ingress, egress)...); err != nil {
		return nil, err
	}
	if a.ifb != nil {
		setInterface(result, a.ifbName, a.ifb)
	}
	return result, nil
}

// steps returns the steps in an order in which no frame is redirected to an ifb
// that is not ready.
func (a *addition) steps(ingress, egress *bucket) []sdk.Step {
	var steps []sdk.Step
	if ingress != nil {
		steps = append(steps, a.discipline("limit what the container receives", func() netlink.Qdisc {
			return ingress.qdisc(a.veth.Attrs().Index)
		}))
	}
	if egress != nil {
		steps = append(steps,
			sdk.Step{Name: fmt.Sprintf("create ifb %q", a.ifbName), Do: a.createIfb, Undo: a.deleteIfb},
			sdk.Step{Name: fmt.Sprintf("prepare ifb %q", a.ifbName), Do: a.prepareIfb},
			sdk.Step{Name: "limit what the container sends", Do: func(context.Context) error {
				return a.host.QdiscAdd(egress.qdisc(a.ifb.Attrs().Index))
			}},
			a.discipline("add the ingress discipline", func() netlink.Qdisc {
				return newIngress(a.veth.Attrs().Index)
			}),
			sdk.Step{Name: fmt.Sprintf("redirect to ifb %q", a.ifbName), Do: func(context.Context) error {
				return a.host.FilterAdd(redirect(a.veth.Attrs().Index, a.ifb.Attrs().Index))
			}},
		)
	}
	return steps
}

// discipline adds a queueing discipline to the veth.
func (a *addition) discipline(act string, qdisc func() netlink.Qdisc) sdk.Step {
	return sdk.Step{
		Name: fmt.Sprintf("%s on veth %q", act, a.veth.Attrs().Name),
		Do:   func(context.Context) error { return a.host.QdiscAdd(qdisc()) },
		Undo: func(context.Context) error { return a.host.QdiscDel(qdisc()) },
	}
}

func (a *addition) createIfb(context.Context) error {
	return a.host.LinkAdd(newIfb(a.ifbName, a.ifbMAC, a.veth.Attrs().MTU))
}

func (a *addition) deleteIfb(ctx context.Context) error {
	_, err := a.host.DeleteLink(ctx, a.ifbName)
	return err
}

// prepareIfb records the owner as the ifb's alias and reads the ifb for the
// result.
func (a *addition) prepareIfb(context.Context) (err error) {
	if a.ifb, err = a.host.LinkByName(a.ifbName); err != nil {
		return err
	}
	return a.host.LinkSetAlias(a.ifb, a.owner.String())
}
