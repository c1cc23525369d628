package allocnet

import (
	"encoding/json"

	"github.com/allocnet/allocnet/portmap"
)

// Status is the network of an allocation as a scheduler publishes it.
type Status struct {
	// Created says that this Setup made the allocation: no other was set up under the
	// ID when it began. It is false for one that was found, even if it had to be repaired
	// or set up again, and in a Record.
	Created bool `json:"created,omitempty"`
	// InterfaceName is the selected interface: the first one, by name, of the
	// first network that lies in a sandbox and has an address; else the first
	// with an address; else the first in a sandbox; "" if the networks made none. The
	// loopback interface is selected only if there is no other.
	InterfaceName string `json:"interfaceName"`
	// Address is the first IPv4 address of that interface, or, where it has
	// none, its first IPv6 address, or "". Without prefix length.
	Address string `json:"address"`
	// AddressIPv6 is the first IPv6 address of that interface, or "".
	AddressIPv6 string `json:"addressIPv6,omitempty"`
	// DNS is what the first network that names a server says; nil when none does.
	DNS *DNS `json:"dns,omitempty"`
	// Interfaces are all interfaces of all networks, in the order of the networks;
	// never nil.
	Interfaces []Interface `json:"interfaces"`
	// Routes are all routes of all networks, in the order of the networks.
	Routes []Route `json:"routes,omitempty"`
	// Ports are the published ports.
	Ports []portmap.Mapping `json:"ports,omitempty"`
	// Unserved are, sorted, the capabilities that the allocation requests and no
	// plugin declares: they have no effect. See Config.AllowUnserved.
	Unserved []string `json:"unserved,omitempty"`
	// Warnings are what the user of this Setup should know although it succeeded, such as
	// of processes of the host that listen on published ports. A Record has none.
	Warnings []string `json:"warnings,omitempty"`
	// Results are what the networks' last plugins returned, in the order of the
	// networks: CNI results, as the record has them. They are not part of the JSON.
	Results []json.RawMessage `json:"-"`
}

// Interface is one interface that a network made, in the sandbox or on the host.
type Interface struct {
	Network string `json:"network"`
	Name    string `json:"name"`
	MAC     string `json:"mac,omitempty"`
	// MTU is in bytes: as configured or, below 1500, as the native engine chose it by the
	// host's default route; 0 where the plugin did not say one.
	MTU       int       `json:"mtu,omitempty"`
	Sandbox   string    `json:"sandbox,omitempty"` // path of the network namespace; "" on the host
	Addresses []Address `json:"addresses,omitempty"`
}

// Address is one address of an interface.
type Address struct {
	Address string `json:"address"` // with prefix length
	Gateway string `json:"gateway,omitempty"`
}

// Route is one route inside the sandbox.
type Route struct {
	Network     string `json:"network"`
	Destination string `json:"destination"` // with prefix length
	Gateway     string `json:"gateway,omitempty"`
	MTU         int    `json:"mtu,omitempty"`
}
