package plugin

import (
	"errors"

	"github.com/hashicorp/go-hclog"

	"github.com/allocnet/allocnet/internal/kernel"
	"github.com/allocnet/allocnet/internal/ruleset"
)

// OpenHost opens the host that the process lives in.
func OpenHost(log hclog.Logger) (*Host, error) {
	h := &Host{Log: log}
	var err error
	if h.Kernel, err = kernel.OpenHost(); err != nil {
		return nil, err
	}
	if h.Rules, err = ruleset.Open(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// Close gives back what OpenHost opened. No operation may be under way.
func (h *Host) Close() error {
	h.Kernel.Close()
	if h.Rules == nil {
		return nil
	}
	return h.Rules.Close()
}
