package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
)

// ParseResult parses a CNI result of any version. It returns an error for an
// inconsistent result: see Validate.
func ParseResult(data []byte) (*types100.Result, error) {
	if len(data) == 0 {
		return nil, fmt.Errorf("%w: empty", ErrInvalidResult)
	}
	any, err := create.CreateFromBytes(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidResult, err)
	}
	r, err := types100.NewResultFromResult(any)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidResult, err)
	}
	return r, Validate(r)
}

// Validate returns an error for entries that are null, addresses that are empty, and
// interface indexes that do not exist.
func Validate(r *types100.Result) error {
	var errs []error
	for i, itf := range r.Interfaces {
		if itf == nil {
			errs = append(errs, fmt.Errorf("%w: interfaces[%d] is null", ErrInvalidResult, i))
		}
	}
	for i, ip := range r.IPs {
		switch {
		case ip == nil:
			errs = append(errs, fmt.Errorf("%w: ips[%d] is null", ErrInvalidResult, i))
		case len(ip.Address.IP) == 0:
			errs = append(errs, fmt.Errorf("%w: ips[%d] has no address", ErrInvalidResult, i))
		case ip.Interface != nil && (*ip.Interface < 0 || *ip.Interface >= len(r.Interfaces)):
			errs = append(errs, fmt.Errorf("%w: ips[%d] (%s) is of interface %d, and there are %d",
				ErrInvalidResult, i, ip.Address.String(), *ip.Interface, len(r.Interfaces)))
		}
	}
	return errors.Join(errs...)
}

// EncodeResult encodes a result as JSON. The output equals that of its MarshalJSON
// method, which builds a map and takes as long as adding a route to the kernel.
func EncodeResult(r *types100.Result) ([]byte, error) {
	text := resultText{CNIVersion: r.CNIVersion}
	if !r.DNS.IsEmpty() {
		text.DNS = &dnsText{Domain: r.DNS.Domain, Nameservers: r.DNS.Nameservers, Options: r.DNS.Options, Search: r.DNS.Search}
	}
	for _, itf := range r.Interfaces {
		if itf == nil {
			return json.Marshal(r)
		}
		text.Interfaces = append(text.Interfaces, interfaceText{
			Mac: itf.Mac, Mtu: itf.Mtu, Name: itf.Name, PciID: itf.PciID, Sandbox: itf.Sandbox, SocketPath: itf.SocketPath,
		})
	}
	for _, ip := range r.IPs {
		if ip == nil || !isAddress(ip.Gateway) {
			return json.Marshal(r)
		}
		text.IPs = append(text.IPs, addressText{Address: ip.Address.String(), Gateway: addressOf(ip.Gateway), Interface: ip.Interface})
	}
	for _, route := range r.Routes {
		if route == nil || !isAddress(route.GW) {
			return json.Marshal(r)
		}
		text.Routes = append(text.Routes, routeText{
			AdvMSS: route.AdvMSS, Dst: route.Dst.String(), GW: addressOf(route.GW), MTU: route.MTU,
			Priority: route.Priority, Scope: route.Scope, Table: route.Table,
		})
	}
	return json.Marshal(&text)
}

// isAddress reports whether ip is a valid address or empty.
func isAddress(ip net.IP) bool {
	return len(ip) == 0 || len(ip) == net.IPv4len || len(ip) == net.IPv6len
}

// addressOf formats an address; "" if it is empty.
func addressOf(ip net.IP) string {
	if len(ip) == 0 {
		return ""
	}
	return ip.String()
}

// resultText and its parts have the keys of a result in alphabetical order.
type resultText struct {
	CNIVersion string          `json:"cniVersion,omitempty"`
	DNS        *dnsText        `json:"dns,omitempty"`
	Interfaces []interfaceText `json:"interfaces,omitempty"`
	IPs        []addressText   `json:"ips,omitempty"`
	Routes     []routeText     `json:"routes,omitempty"`
}

type dnsText struct {
	Domain      string   `json:"domain,omitempty"`
	Nameservers []string `json:"nameservers,omitempty"`
	Options     []string `json:"options,omitempty"`
	Search      []string `json:"search,omitempty"`
}

type interfaceText struct {
	Mac        string `json:"mac,omitempty"`
	Mtu        int    `json:"mtu,omitempty"`
	Name       string `json:"name"`
	PciID      string `json:"pciID,omitempty"`
	Sandbox    string `json:"sandbox,omitempty"`
	SocketPath string `json:"socketPath,omitempty"`
}

type addressText struct {
	Address   string `json:"address"`
	Gateway   string `json:"gateway,omitempty"`
	Interface *int   `json:"interface,omitempty"`
}

type routeText struct {
	AdvMSS   int    `json:"advmss,omitempty"`
	Dst      string `json:"dst"`
	GW       string `json:"gw,omitempty"`
	MTU      int    `json:"mtu,omitempty"`
	Priority int    `json:"priority,omitempty"`
	Scope    *int   `json:"scope,omitempty"`
	Table    *int   `json:"table,omitempty"`
}
