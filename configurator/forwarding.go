package configurator

import (
	"errors"

	"github.com/allocnet/allocnet/internal/conflist"
	"github.com/allocnet/allocnet/internal/forward"
	"github.com/allocnet/allocnet/internal/record"
)

// openForwarding lets the published ports of a record through the host's FORWARD
// path, for the networks that leave that to us.
func openForwarding(r *record.Record) error { return eachOpenBridge(r, forward.Open) }

// checkForwarding looks whether they still are.
func checkForwarding(r *record.Record) error { return eachOpenBridge(r, forward.Check) }

func eachOpenBridge(r *record.Record, act func(bridge string) error) error {
	if len(r.Ports) == 0 {
		return nil
	}
	var errs []error
	for _, a := range r.Attachments {
		n, err := conflist.Parse(a.Config)
		if err != nil {
			return err
		}
		if bridge := n.OpenBridge(); bridge != "" {
			errs = append(errs, act(bridge))
		}
	}
	return errors.Join(errs...)
}
