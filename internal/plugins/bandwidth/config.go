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

// Limits are what a configuration, or the runtime, asks for, seen from the
// container: rates in bits per second, bursts in bits; 0 is no limit.
type Limits struct {
	IngressRate  uint64 `json:"ingressRate"`
	IngressBurst uint64 `json:"ingressBurst"`
	EgressRate   uint64 `json:"egressRate"`
	EgressBurst  uint64 `json:"egressBurst"`
}

// config is the plugin's configuration. Limits is not nil when one of its keys is
// there, with whatever value.
type config struct {
	sdk.Common
	*Limits
}

// limits are those that hold: the configuration's own, even if zero, before the
// runtime's.
func (c *config) limits(runtime *Limits) Limits {
	switch {
	case c.Limits != nil:
		return *c.Limits
	case runtime != nil:
		return *runtime
	}
	return Limits{}
}

// runtimeKey is the capability argument.
const runtimeKey = "runtimeConfig.bandwidth"

// runtimeLimits are those that the runtime gives, nil for none. All that is in
// them is this plugin's, so they are read strictly too.
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

// buckets turn limits into what the kernel takes; nil is no limit.
func (l Limits) buckets() (ingress, egress *bucket, err error) {
	if ingress, err = newBucket(l.IngressRate, l.IngressBurst); err != nil {
		return nil, nil, fmt.Errorf("ingressRate and ingressBurst: %w", err)
	}
	if egress, err = newBucket(l.EgressRate, l.EgressBurst); err != nil {
		return nil, nil, fmt.Errorf("egressRate and egressBurst: %w", err)
	}
	return ingress, egress, nil
}

const bitsPerByte = 8

// newBucket checks what the reference plugin checks, and that neither the rate
// nor the burst is less than a byte, which would be none at all.
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

// Versions are those of CNI whose results name interfaces.
var Versions = version.VersionsStartingFrom("0.3.0")

// checkVersion refuses other versions.
func (c *config) checkVersion() error {
	if slices.Contains(Versions.SupportedVersions(), c.CNIVersion) {
		return nil
	}
	return types.NewError(types.ErrIncompatibleCNIVersion, "incompatible CNI versions",
		fmt.Sprintf("the configuration has %q, the plugin supports %q", c.CNIVersion, Versions.SupportedVersions()))
}
