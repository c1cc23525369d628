package policy

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/policy"
)

// Capability is the name of the plugin and of its capability, whose argument is Request.
const Capability = "policy"

// Request is the argument of the capability: the policy of an allocation, and the ID and the labels
// by which the policies of other allocations select it.
type Request struct {
	Allocation string            `json:"allocation,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	Policy     *policy.Policy    `json:"policy,omitempty"`
}

// plugin is the plugin with its configuration.
type plugin struct {
	sdk.Common
	Policy *policy.Policy `json:"policy"` // of the network

	request Request
}

var _ sdk.RuntimeConfigured = (*plugin)(nil)

// New implements sdk.Factory.
func New(conf []byte) (sdk.Plugin, error) {
	p := &plugin{}
	err := sdk.Decode(conf, p)
	var runtime struct {
		Policy json.RawMessage `json:"policy"`
	}
	runtimeErr := p.Runtime(&runtime)
	invalid := validate("policy", p.Policy)
	return p, errors.Join(sdk.FirstError(err, runtimeErr, invalid), p.read(runtime.Policy))
}

// WithRuntime implements sdk.RuntimeConfigured.
func (p *plugin) WithRuntime(runtime map[string]json.RawMessage) (sdk.Plugin, error) {
	with := *p
	return &with, with.read(runtime[Capability])
}

func (p *plugin) read(request json.RawMessage) error {
	p.request = Request{}
	if err := sdk.DecodeRuntime(request, &p.request); err != nil {
		return err
	}
	return validate("runtimeConfig.policy", p.request.Policy)
}

func validate(place string, p *policy.Policy) error {
	if err := p.Validate(); err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("plugin policy: %s: %v", place, err), "")
	}
	return nil
}
