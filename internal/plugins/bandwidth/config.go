package bandwidth

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// Limits are the requested limits, from the container's point of view: rates in
// bits per second, bursts in bits; 0 means no limit.
type Limits struct {
	IngressRate  uint64 `json:"ingressRate"`
	IngressBurst uint64 `json:"ingressBurst"`
	EgressRate   uint64 `json:"egressRate"`
	EgressBurst  uint64 `json:"egressBurst"`
}

// config is the plugin's configuration. Limits is not nil if the configuration
// has one of its keys, with any value.
type config struct {
	sdk.Common
	*Limits
}

// limits returns the effective limits: those of the configuration, even if they
// are zero, otherwise those of the runtime.
func (c *config) limits(runtime *Limits) Limits {
	switch {
	case c.Limits != nil:
		return *c.Limits
	case runtime != nil:
		return *runtime
	}
	return Limits{}
}

// runtimeKey is the path of the capability argument.
const runtimeKey = "runtimeConfig.bandwidth"

// runtimeLimits returns the limits from the runtime; nil if there are none. It
// rejects unknown keys, because the object belongs to this plugin alone.
func (c *config) runtimeLimits() (*Limits, error) {
	var runtime struct {
		Bandwidth json.RawMessage `json:"bandwidth"`
	}
	if err := c.Runtime(&runtime); err != nil || len(runtime.Bandwidth) == 0 {
		return nil, err
	}
	var limits *Limits
	err := sdk.Decode(runtime.Bandwidth, &limits)
	var unknown *sdk.UnknownKeyError
	if errors.As(err, &unknown) {
		err = &sdk.UnknownKeyError{Key: runtimeKey + "." + unknown.Key}
	}
	return limits, err
}

// Validate returns an error unless an ADD can set the limits.
func (l Limits) Validate() error {
	_, _, err := l.buckets()
	return err
}

// buckets returns the token buckets of limits; nil means no limit.
func (l Limits) buckets() (ingress, egress *bucket, err error) {
	if ingress, err = newBucket(l.IngressRate, l.IngressBurst); err != nil {
		return nil, nil, sdk.Invalid(fmt.Errorf("ingressRate and ingressBurst: %w", err))
	}
	if egress, err = newBucket(l.EgressRate, l.EgressBurst); err != nil {
		return nil, nil, sdk.Invalid(fmt.Errorf("egressRate and egressBurst: %w", err))
	}
	return ingress, egress, nil
}

const bitsPerByte = 8

// newBucket makes the reference plugin's checks and rejects a rate or burst of
// less than a byte, which would round to no limit.
func newBucket(rate, burst uint64) (*bucket, error) {
	switch {
	case rate == 0 && burst == 0:
		return nil, nil
	case burst == 0:
		return nil, errors.New("a rate needs a burst")
	case rate == 0:
		return nil, errors.New("a burst needs a rate")
	case burst/bitsPerByte >= math.MaxUint32:
		return nil, fmt.Errorf("a burst of %d bits is not below 4 GiB", burst)
	case rate < bitsPerByte || burst < bitsPerByte:
		return nil, errors.New("less than a byte")
	}
	b := fill(rate/bitsPerByte, burst/bitsPerByte)
	return &b, nil
}

// Versions are the CNI versions whose results have interfaces.
var Versions = version.VersionsStartingFrom("0.3.0")

// checkVersion rejects other versions.
func (c *config) checkVersion() error {
	if slices.Contains(Versions.SupportedVersions(), c.CNIVersion) {
		return nil
	}
	return types.NewError(types.ErrIncompatibleCNIVersion, "incompatible CNI versions",
		fmt.Sprintf("the configuration has %q, the plugin supports %q", c.CNIVersion, Versions.SupportedVersions()))
}
