package client_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
)

// A program uses the daemon where it is there, and works alone where it is not.
func Example() {
	setUp := func(ctx context.Context, a configurator.Allocation) (*configurator.Status, error) {
		status, err := client.New(client.Config{}).Setup(ctx, a)
		if !errors.Is(err, client.ErrUnavailable) {
			return status, err
		}
		local, err := configurator.New(configurator.Config{})
		if err != nil {
			return nil, err
		}
		return local.Setup(ctx, a)
	}
	_ = setUp
}

// Forced cleanups, as they happen.
func ExampleClient_Events() {
	watch := func(ctx context.Context) error {
		for event, err := range client.New(client.Config{}).Events(ctx, 0) {
			if err != nil {
				return err
			}
			if forced, ok := event.Data.(*client.Forced); ok {
				fmt.Println(forced.ID, forced.Removed)
			}
		}
		return nil
	}
	_ = watch
}
