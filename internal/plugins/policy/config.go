package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/names"
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
	text    string // of the policy of request
	latest  *latest
}

// latest keeps what the latest text of a policy means, for the allocations that have the same one.
type latest struct {
	decoded  atomic.Pointer[decodedText]
	compiled atomic.Pointer[compiledText]
}

type decodedText struct {
	text   string
	policy *policy.Policy // not changed any more
}

type compiledText struct {
	text, instance, family string
	own                    []netip.Prefix
	compiled               *compiled // not changed any more; nil if everything is allowed
}

var _ sdk.RuntimeConfigured = (*plugin)(nil)

// New implements sdk.Factory. A request in the configuration itself is not that of an allocation, so it cannot
// have labels of a namespace.
func New(conf []byte) (sdk.Plugin, error) {
	p := &plugin{latest: &latest{}}
	err := sdk.Decode(conf, p)
	var runtime struct {
		Policy json.RawMessage `json:"policy"`
	}
	runtimeErr := p.Runtime(&runtime)
	invalid := coded(p.Policy.Validate())
	requestErr := p.read(runtime.Policy)
	return p, errors.Join(sdk.FirstError(err, runtimeErr, refuseNull(conf), invalid), requestErr, coded(names.RefuseReserved(p.request.Labels)))
}

// refuseNull returns an error for a policy of the network that is null, which would allow everything.
func refuseNull(conf []byte) error {
	var own struct {
		Policy json.RawMessage `json:"policy"`
	}
	if json.Unmarshal(conf, &own) == nil && string(own.Policy) == "null" {
		return refusal("check policy: it is null: leave the key out, or give it a value")
	}
	return nil
}

// WithRuntime implements sdk.RuntimeConfigured.
func (p *plugin) WithRuntime(runtime map[string]json.RawMessage) (sdk.Plugin, error) {
	with := *p
	return &with, with.read(runtime[Capability])
}

func (p *plugin) read(request json.RawMessage) error {
	var r struct {
		Request
		Policy json.RawMessage `json:"policy"`
	}
	p.request, p.text = Request{}, ""
	if err := sdk.DecodeRuntime(request, &r); err != nil {
		return err
	}
	p.request, p.text = r.Request, string(r.Policy)
	if p.text == "" {
		return nil
	}
	if known := p.latest.decoded.Load(); known != nil && known.text == p.text {
		p.request.Policy = known.policy
		return nil
	}
	if err := sdk.DecodeRuntime(r.Policy, &p.request.Policy); err != nil {
		return err
	}
	if err := p.request.Policy.Validate(); err != nil {
		return coded(fmt.Errorf("runtimeConfig: %w", err))
	}
	p.latest.decoded.Store(&decodedText{p.text, p.request.Policy})
	return nil
}

// compile returns the policy of an attachment: that of its network and that of its allocation.
func (p *plugin) compile(instance string, r *types100.Result) (*compiled, error) {
	own, family := ownNetworks(r), familyOf(r)
	if known := p.latest.compiled.Load(); known != nil && known.text == p.text && known.instance == instance && known.family == family && slices.Equal(known.own, own) {
		return known.compiled, nil
	}
	c, err := compile(instance, family, own, p.Policy, p.request.Policy)
	if err == nil {
		p.latest.compiled.Store(&compiledText{p.text, instance, family, own, c})
	}
	return c, err
}

// coded returns the error of an invalid policy with its CNI code.
func coded(err error) error {
	if err == nil {
		return nil
	}
	return refusal(err.Error())
}
