package portmap

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// config has the keys of the reference plugin.
type config struct {
	sdk.Common
	Backend              *string  `json:"backend"`
	SNAT                 *bool    `json:"snat"`
	ConditionsV4         []string `json:"conditionsV4"`
	ConditionsV6         []string `json:"conditionsV6"`
	MasqAll              bool     `json:"masqAll"`
	MarkMasqBit          *int     `json:"markMasqBit"`
	ExternalSetMarkChain *string  `json:"externalSetMarkChain"`
}

// portMapping is one entry of the capability portMappings.
type portMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`

	protocol uint8
	hostIP   netip.Addr
}

// defaultMarkBit is the bit of the packet mark for packets to masquerade.
// Kubernetes uses 14 and 15.
const defaultMarkBit = 13

var protocols = map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}

// portmap is the plugin with its configuration.
type portmap struct {
	config
	snat     bool
	markBit  int
	mappings []portMapping
	backend  backend
	// anyBackend reports whether the configuration does not say which backend ADD used.
	anyBackend bool
	// invalid is the reason why ADD rejects the configuration. DEL still works,
	// so that it does not block the DEL of the previous plugins.
	invalid error
}

// New implements sdk.Factory.
func New(conf []byte) (sdk.Plugin, error) {
	p := &portmap{markBit: defaultMarkBit, backend: native{}}
	decodeErr := sdk.Decode(conf, &p.config)
	var runtime struct {
		PortMappings json.RawMessage `json:"portMappings"`
	}
	runtimeErr := p.Runtime(&runtime)
	p.snat = p.SNAT == nil || *p.SNAT
	if p.MarkMasqBit != nil {
		p.markBit = *p.MarkMasqBit
	}
	name, err := p.backendName()
	p.anyBackend = err != nil || decodeErr != nil && !sdk.IsUnknownKey(decodeErr)
	switch name {
	case iptablesName:
		p.backend = iptablesBackend{}
	case nftablesName:
		p.backend = nftablesBackend{}
	}
	p.invalid = sdk.Invalid(errors.Join(p.validate(), err))
	return p, sdk.FirstError(decodeErr, runtimeErr, p.publish(runtime.PortMappings))
}

// WithRuntime implements sdk.RuntimeConfigured.
func (p *portmap) WithRuntime(runtime map[string]json.RawMessage) (sdk.Plugin, error) {
	with := *p
	err := with.publish(runtime["portMappings"])
	return &with, err
}

// publish reads the port mappings.
func (p *portmap) publish(mappings json.RawMessage) error {
	err := sdk.DecodeRuntime(mappings, &p.mappings)
	p.invalid = errors.Join(p.invalid, err, sdk.Invalid(p.validateMappings()))
	return err
}

func (p *portmap) validate() error {
	if p.MarkMasqBit != nil && p.ExternalSetMarkChain != nil {
		return errors.New("cannot specify externalSetMarkChain and markMasqBit")
	}
	if p.ExternalSetMarkChain != nil {
		if err := names.ValidateChain(*p.ExternalSetMarkChain); err != nil {
			return fmt.Errorf("externalSetMarkChain: %w", err)
		}
	}
	if p.markBit < 0 || p.markBit > 31 {
		return fmt.Errorf("markMasqBit is %d, but must be between 0 and 31", p.markBit)
	}
	return nil
}

func (p *portmap) validateMappings() error {
	var errs []error
	for i := range p.mappings {
		if err := p.mappings[i].validate(); err != nil {
			errs = append(errs, fmt.Errorf("port mapping %d: %w", i, err))
		}
	}
	return errors.Join(errs...)
}

const highest = 65535

func (m *portMapping) validate() (err error) {
	var ok bool
	m.Protocol = strings.ToLower(m.Protocol)
	if m.protocol, ok = protocols[m.Protocol]; !ok {
		return fmt.Errorf("invalid protocol: %q", m.Protocol)
	}
	if m.ContainerPort <= 0 || m.ContainerPort > highest {
		return fmt.Errorf("invalid container port number: %d", m.ContainerPort)
	}
	if m.HostPort <= 0 || m.HostPort > highest {
		return fmt.Errorf("invalid host port number: %d", m.HostPort)
	}
	if m.HostIP == "" {
		return nil
	}
	if m.hostIP, err = netip.ParseAddr(m.HostIP); err != nil {
		return fmt.Errorf("invalid host IP: %w", err)
	}
	m.hostIP = m.hostIP.Unmap()
	return nil
}

const (
	iptablesName = "iptables"
	nftablesName = "nftables"
)

// backendName returns the configured backend, or the one that keys require; ""
// if there is none.
func (p *portmap) backendName() (string, error) {
	needs := map[string][]string{}
	if p.ExternalSetMarkChain != nil {
		needs[iptablesName] = append(needs[iptablesName], "externalSetMarkChain")
	}
	for _, c := range []struct {
		key        string
		conditions []string
	}{{"conditionsV4", p.ConditionsV4}, {"conditionsV6", p.ConditionsV6}} {
		if backend := backendOf(c.conditions); backend != "" {
			needs[backend] = append(needs[backend], c.key)
		}
	}
	name := p.impliedName(needs)
	if p.Backend != nil {
		name = *p.Backend
		if name != iptablesName && name != nftablesName {
			return name, fmt.Errorf("unrecognized backend %q", name)
		}
	}
	other := map[string]string{iptablesName: nftablesName, nftablesName: iptablesName}[name]
	if len(needs[other]) > 0 {
		return name, fmt.Errorf("the backend is %s, but %v are for %s only", name, needs[other], other)
	}
	return name, nil
}

// impliedName returns the backend that keys require. Both backends support the
// mark bit, but nftables does not use it.
func (p *portmap) impliedName(needs map[string][]string) string {
	switch {
	case len(needs[iptablesName]) > 0:
		return iptablesName
	case len(needs[nftablesName]) > 0:
		return nftablesName
	case p.MarkMasqBit == nil:
		return ""
	}
	if _, err := exec.LookPath("iptables"); err != nil {
		return nftablesName
	}
	return iptablesName
}

// backendOf derives the backend of conditions from their first word.
func backendOf(conditions []string) string {
	switch {
	case len(conditions) == 0 || conditions[0] == "":
		return ""
	case strings.HasPrefix(conditions[0], "-") || strings.HasPrefix(conditions[0], "!"):
		return iptablesName
	}
	return nftablesName
}
