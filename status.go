package allocnet

import (
	"encoding/json"

	"github.com/allocnet/allocnet/portmap"
)

// Status is the network of an allocation: the result that a scheduler publishes.
type Status struct {
	// Created reports that this Setup created the allocation: when it began, no
	// allocation was set up under the ID, or the network namespace of the one that was
	// no longer existed. Setup removes what is left of that first, and the addresses can
	// be others. Created is false if Setup found an allocation, even if it had to repair
	// it or set it up again. It is false in a Record.
	Created bool `json:"created,omitempty"`
	// SetUpAgain reports that this Setup found an allocation that it could not repair, and
	// replaced its interfaces. Its addresses may have changed; Warnings has those before.
	// It is false in a Record.
	SetUpAgain bool `json:"setUpAgain,omitempty"`
	// InterfaceName is the selected interface: of the first network that has an
	// interface with an address, the first such interface by name, one in the network
	// namespace before one of a virtual machine, and that before one on the host. If no interface has an address, it is the
	// first interface in the namespace by name. The loopback interface is selected
	// only if there is no other. It is "" if the networks created no interface.
	InterfaceName string `json:"interfaceName"`
	// Address is the first IPv4 address of the selected interface, without prefix
	// length. If there is none, it is the first IPv6 address, or "".
	Address string `json:"address"`
	// AddressIPv6 is the first IPv6 address of the selected interface, or "".
	AddressIPv6 string `json:"addressIPv6,omitempty"`
	// DNS is the resolver configuration of the first network that names a server. It
	// is nil if no network names one.
	DNS *DNS `json:"dns,omitempty"`
	// Interfaces are all interfaces of all networks, in the order of the networks. It
	// is never nil.
	Interfaces []Interface `json:"interfaces"`
	// Routes are all routes of all networks, in the order of the networks.
	Routes []Route `json:"routes,omitempty"`
	// Revision is the field of the same name of the Record.
	Revision string `json:"revision,omitempty"`
	// Ports are the published ports.
	Ports []portmap.Mapping `json:"ports,omitempty"`
	// Unserved are the requested capabilities that no plugin declares, sorted. They
	// have no effect. See Config.AllowUnserved.
	Unserved []string `json:"unserved,omitempty"`
	// Warnings are texts for the caller of a Setup or Update that succeeded, for example
	// about processes of the host that listen on published ports, and about host ports
	// on an address that the host does not have. A Record has none.
	Warnings []string `json:"warnings,omitempty"`
	// Results are the CNI results of the networks, in the order of the networks, in
	// the form in which they are recorded. They are not part of the JSON.
	Results []json.RawMessage `json:"-"`
}

// Interface is an interface that a network created in the network namespace or on the
// host.
type Interface struct {
	Network string `json:"network"`
	Name    string `json:"name"`
	MAC     string `json:"mac,omitempty"`
	// MTU is in bytes. It is the configured value, or a value below 1500 that the
	// native engine derived from the MTU of the host's default route. It is 0 if the
	// plugin did not report one.
	MTU       int       `json:"mtu,omitempty"`
	Sandbox   string    `json:"sandbox,omitempty"` // path of the network namespace, or the ID of a virtual machine; "" on the host
	Addresses []Address `json:"addresses,omitempty"`
}

// Address is an address of an interface.
type Address struct {
	Address string `json:"address"` // with prefix length
	Gateway string `json:"gateway,omitempty"`
}

// Route is a route in the network namespace.
type Route struct {
	Network     string `json:"network"`
	Destination string `json:"destination"` // with prefix length
	Gateway     string `json:"gateway,omitempty"`
	MTU         int    `json:"mtu,omitempty"` // in bytes; 0 if the plugin did not report one
}
