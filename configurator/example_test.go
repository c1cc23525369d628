package configurator_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// A scheduler sets up the network of an allocation, publishes its address and
// removes everything again. After a restart it does the same: an allocation
// that is set up already is checked.
func Example() {
	nets, err := configurator.New(configurator.Config{Network: "allocnet"})
	if err != nil {
		log.Fatal(err)
	}
	run := func(ctx context.Context, id string) error {
		ns, _, err := sandbox.Ensure(id)
		if err != nil {
			return err
		}
		alloc := configurator.Allocation{
			ID: id, Netns: ns.Path(),
			Ports: []portmap.Port{{Label: "http", Value: 8080, To: 80, Protocols: []string{"tcp"}}},
		}
		status, err := nets.Setup(ctx, alloc)
		if err != nil {
			return errors.Join(err, ns.Destroy())
		}
		fmt.Println(status.InterfaceName, status.Address, status.AddressIPv6)
		return errors.Join(nets.Teardown(ctx, alloc), ns.Destroy())
	}
	defer nets.Close() // waits for the deletion of links, which follows a Teardown
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx, "web-1"); err != nil {
		log.Fatal(err)
	}
}
