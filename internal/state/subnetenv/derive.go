package subnetenv

import (
	"encoding/json"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
)

// Derive returns the configuration of the plugin to which a configuration of type
// "flannel" delegates, as the reference plugin derives it: "delegate" with the name, the
// CNI version, the MTU, ipMasq and the IPAM configuration of the host's subnets. Of the
// configuration itself, it keeps the capabilities, so that the delegate gets their
// arguments in place of it. Equal arguments have equal results.
//
// If the delegate masquerades and is allocnet's bridge or ptp, MasqExceptKey keeps it
// from doing so within the cluster.
//
// The configuration may be one of a list: name and cniVersion are only there if it has
// them. An error is a *types.Error with the code of what is wrong with it.
func (c *Conf) Derive(env Env) ([]byte, error) {
	ipam, err := c.deriveIPAM(env)
	if err != nil {
		return nil, err
	}
	d := object{}
	for key, value := range c.Delegate {
		d[key] = value
	}
	d["ipam"] = ipam
	for key, raw := range map[string]json.RawMessage{"name": c.Name, "runtimeConfig": c.RuntimeConfig} {
		if isGiven(raw) {
			d[key] = raw
		}
	}
	if isGiven(c.CNIVersion) && string(c.CNIVersion) != `""` {
		d["cniVersion"] = c.CNIVersion
	}
	if isGiven(c.Capabilities) {
		d.setDefault("capabilities", c.Capabilities)
	}
	delegate, _ := typeOf(c.Delegate, defaultType) // ParseConf has validated it
	d.setDefault("type", delegate)
	d.setDefault("mtu", env.MTU)
	d.setDefault("ipMasq", !env.IPMasq)
	if delegate == "bridge" {
		d.setDefault("isGateway", true)
	}
	if (delegate == "bridge" || delegate == "ptp") && c.masquerades(env) {
		d.setDefault(MasqExceptKey, env.Clusters())
	}
	return json.Marshal(d)
}

// masquerades reports whether the delegate has to masquerade.
func (c *Conf) masquerades(env Env) bool {
	if raw, ok := c.Delegate["ipMasq"]; ok {
		return string(raw) == "true"
	}
	return !env.IPMasq
}

// deriveIPAM adds the subnets, and the routes to the whole cluster, to "ipam". It drops the
// routes of a family of which the host has no subnet: they cannot be added.
func (c *Conf) deriveIPAM(env Env) (object, error) {
	var given []types.Route
	if raw, ok := c.IPAM["routes"]; ok {
		if err := json.Unmarshal(raw, &given); err != nil {
			return nil, types.NewError(types.ErrDecodingFailure, `flannel: "routes" of "ipam" cannot be read`, err.Error())
		}
	}
	routes := slices.DeleteFunc(append([]types.Route{}, given...), func(r types.Route) bool { return !env.has(r.Dst) })
	for _, cluster := range env.Clusters() {
		routes = append(routes, types.Route{Dst: ipNet(cluster)})
	}
	type addressRange struct {
		Subnet netip.Prefix `json:"subnet"`
	}
	ranges := [][]addressRange{}
	for _, subnet := range []netip.Prefix{env.Subnet, env.IPv6Subnet} {
		if subnet.IsValid() {
			ranges = append(ranges, []addressRange{{subnet}})
		}
	}
	d := object{}
	for key, value := range c.IPAM {
		d[key] = value
	}
	d.setDefault("type", "host-local")
	d["ranges"], d["routes"] = ranges, routes
	return d, nil
}

// has reports whether the host has a subnet of the family of a destination.
func (e Env) has(destination net.IPNet) bool {
	if destination.IP.To4() != nil {
		return e.Subnet.IsValid()
	}
	return e.IPv6Subnet.IsValid()
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// object is a JSON object.
type object map[string]any

// setDefault sets a key that the object does not have.
func (o object) setDefault(key string, value any) {
	if _, ok := o[key]; !ok {
		o[key] = value
	}
}
