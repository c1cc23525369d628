package bridge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/object"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/plugins/spoofcheck"
)

// guardMAC adds the rules before the link exists, so that no frame passes
// unchecked.
func (a *addition) guardMAC(ctx context.Context) error {
	if !a.MacSpoofChk {
		return nil
	}
	return spoofcheck.Add(ctx, &spoofcheck.Port{Owner: a.Args.Owner(a.Name), Link: a.veth.Name, MAC: a.veth.PeerMAC})
}

func (a *addition) unguardMAC(ctx context.Context) error {
	if !a.MacSpoofChk {
		return nil
	}
	return spoofcheck.Del(ctx, a.Args.Owner(a.Name))
}

// spoofPort returns the attachment's port in a result, which may be the reference
// plugin's.
func (b *bridge) spoofPort(c *sdk.CmdArgs, r *types100.Result) (*spoofcheck.Port, error) {
	host := slices.IndexFunc(r.Interfaces, func(i *types100.Interface) bool { return i.Sandbox == "" && i.Name != b.Bridge })
	inside := slices.IndexFunc(r.Interfaces, func(i *types100.Interface) bool { return i.Sandbox != "" && i.Name == c.IfName })
	if host < 0 || inside < 0 {
		return nil, errors.New("macspoofchk: prevResult lacks an end of the veth")
	}
	mac, err := net.ParseMAC(r.Interfaces[inside].Mac)
	if err != nil {
		return nil, fmt.Errorf("macspoofchk: MAC of %q in prevResult: %w", c.IfName, err)
	}
	return &spoofcheck.Port{Owner: c.Owner(b.Name), Link: r.Interfaces[host].Name, MAC: mac}, nil
}

// macGuard is the rules of macspoofchk for the port of an attachment.
type macGuard struct{ *attachment }

// Compare implements object.Object.
func (m *macGuard) Compare(ctx context.Context, _ *object.View) ([]object.Difference, error) {
	p, err := m.spoofPort(m.Args, m.Result)
	if err != nil {
		return []object.Difference{{Finding: err}}, nil
	}
	err = spoofcheck.Check(ctx, p)
	if errors.Is(err, spoofcheck.ErrMissing) {
		return []object.Difference{{Finding: err, Do: func() error { return spoofcheck.Add(ctx, p) }}}, nil
	}
	return nil, err
}

func (b *bridge) delMACGuard(ctx context.Context, c *sdk.CmdArgs) error {
	if !b.MacSpoofChk && !b.unread {
		return nil
	}
	return spoofcheck.Del(ctx, c.Owner(b.Name))
}
