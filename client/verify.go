package client

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/wire"
)

// The functions in this file verify the content of decoded responses.

func verifyError(e *wire.Error) error {
	if e == nil || e.Kind == "" || e.Message == "" {
		return errors.New("no error, or one without a kind or a message")
	}
	for _, cause := range e.Causes {
		if err := verifyError(cause); err != nil {
			return err
		}
	}
	return nil
}

// verifyNoError verifies a successful response of a type that can contain an error.
func verifyNoError(e *wire.Error) error {
	if e != nil {
		return errors.New("success, with an error")
	}
	return nil
}

func verifyStatus(s *allocnet.Status, isNew bool) error {
	switch {
	case s.Interfaces == nil || s.InterfaceName == "" && s.Address != "":
		return errors.New("a status without interfaces")
	case isNew && !s.Created:
		return errors.New("the status of an allocation that was there")
	}
	return nil
}

func verifyRecord(r *allocnet.Record, id string) error {
	switch {
	case r.ID == "" || r.Phase == "":
		return errors.New("a record without an ID or a phase")
	case r.ID != id:
		return fmt.Errorf("the record of allocation %q", r.ID)
	}
	return nil
}

func verifyRecords(answer *wire.Allocations) error {
	if answer.Allocations == nil {
		return errors.New("no list of allocations")
	}
	for i := range answer.Allocations {
		if err := verifyRecord(&answer.Allocations[i], answer.Allocations[i].ID); err != nil {
			return err
		}
	}
	if answer.Error != nil {
		return verifyError(answer.Error)
	}
	return nil
}

func verifyNetworks(answer *wire.Networks) error {
	if answer.Networks == nil || answer.Skipped == nil {
		return errors.New("no list of networks, or of files that were skipped")
	}
	for _, n := range answer.Networks {
		if n.Name == "" {
			return errors.New("a network without a name")
		}
	}
	for _, s := range answer.Skipped {
		if s.File == "" || verifyError(s.Error) != nil {
			return errors.New("a file without a name, or without an error")
		}
	}
	return nil
}

func verifyHistory(answer *wire.History) error {
	if answer.Operations == nil {
		return errors.New("no list of operations")
	}
	for _, o := range answer.Operations {
		if o.ID == "" || o.Operation == "" || o.Time.IsZero() {
			return errors.New("an operation without an ID, a name or a time")
		}
	}
	return nil
}

func verifyReady(answer *wire.Readiness) error {
	if !answer.Ready || answer.Checks == nil {
		return errors.New("it does not say that it is ready, or has no list of checks")
	}
	for _, check := range answer.Checks {
		if !check.Ready || check.Error != nil {
			return fmt.Errorf("ready, but for %q", check.Name)
		}
	}
	return verifyNoError(answer.Error)
}

func verifySandbox(answer *wire.Sandbox, name string) error {
	if !filepath.IsAbs(answer.Path) || filepath.Base(answer.Path) != name {
		return fmt.Errorf("no path of a sandbox %q: %q", name, answer.Path)
	}
	return nil
}

// verifyCollected requires both lists, because they are never nil in a report.
func verifyCollected(r *allocnet.GCReport) error {
	if r.Removed == nil || r.Kept == nil {
		return errors.New("no report of a GC")
	}
	return nil
}

func verifyRecovered(r *allocnet.RecoverReport) error {
	if r.Removed == nil {
		return errors.New("no report of a recovery")
	}
	return nil
}

func verifyRepaired(r *allocnet.RepairReport) error {
	if r.Healthy == nil || r.Repaired == nil || r.Broken == nil {
		return errors.New("no report of a repair")
	}
	return nil
}
