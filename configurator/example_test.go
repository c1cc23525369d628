package configurator_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// A scheduler sets up the network of an allocation, publishes its address and
// takes everything away again.
func Example() {
	nets, err := configurator.New(configurator.Config{Network: "allocnet"})
	if err != nil {
		log.Fatal(err)
	}
	ns, err := sandbox.Create("web-1")
	if err != nil {
		log.Fatal(err)
	}
	defer ns.Destroy()
	alloc := configurator.Allocation{
		ID: "web-1", Netns: ns.Path(),
		Ports: []portmap.Port{{Label: "http", Value: 8080, To: 80}},
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	status, err := nets.Setup(ctx, alloc)
	if err != nil {
		log.Fatal(err) // nothing is left of it on the host
	}
	fmt.Println(status.InterfaceName, status.Address, status.AddressIPv6)
	if err := nets.Teardown(ctx, alloc); err != nil {
		log.Fatal(err)
	}
}
