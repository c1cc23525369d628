package networkpolicy

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/allocnet/allocnet/internal/strictjson"
	"github.com/allocnet/allocnet/policy"
)

// The types in this file have the fields of the API networking.k8s.io/v1.

type document struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   metadata `json:"metadata"`
	Spec       spec     `json:"spec"`
	Status     ignored  `json:"status"`
}

type metadata struct{ Name, Namespace string }

// UnmarshalJSON ignores the other fields, of which an API server adds many.
func (m *metadata) UnmarshalJSON(data []byte) error {
	var in struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return errors.New("not an object with the strings name and namespace")
	}
	*m = metadata(in)
	return nil
}

type ignored struct{}

// UnmarshalJSON accepts everything.
func (*ignored) UnmarshalJSON([]byte) error { return nil }

type spec struct {
	PodSelector selector      `json:"podSelector"`
	PolicyTypes []string      `json:"policyTypes"`
	Ingress     []ingressRule `json:"ingress"`
	Egress      []egressRule  `json:"egress"`
}

type ingressRule struct {
	From  []peer `json:"from"`
	Ports []port `json:"ports"`
}

type egressRule struct {
	To    []peer `json:"to"`
	Ports []port `json:"ports"`
}

type peer struct {
	PodSelector       *selector `json:"podSelector"`
	NamespaceSelector *selector `json:"namespaceSelector"`
	IPBlock           *ipBlock  `json:"ipBlock"`
}

type selector struct {
	MatchLabels      map[string]string    `json:"matchLabels"`
	MatchExpressions []policy.Requirement `json:"matchExpressions"`
}

type ipBlock struct {
	CIDR   string   `json:"cidr"`
	Except []string `json:"except"`
}

type port struct {
	Protocol *string     `json:"protocol"`
	Port     *portOrName `json:"port"`
	EndPort  *uint16     `json:"endPort"`
}

// portOrName is a number or, if name is not empty, the name of a container's port.
type portOrName struct {
	number uint16
	name   string
}

// UnmarshalJSON accepts a number or a string.
func (p *portOrName) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, &p.number) == nil && p.number > 0 {
		return nil
	}
	if json.Unmarshal(data, &p.name) != nil || p.name == "" {
		return fmt.Errorf("%.64s is neither a number from 1 to 65535 nor the name of a port", data)
	}
	return nil
}

const (
	apiVersion = "networking.k8s.io/v1"
	kind       = "NetworkPolicy"
)

// decode returns the documents in data: one, or those of a list.
func decode(data []byte) ([]document, error) {
	var head struct {
		Kind  string            `json:"kind"`
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("not a JSON document: %w", err)
	}
	if head.Kind != "List" && head.Kind != kind+"List" {
		d, err := decodeOne(data)
		return []document{d}, err
	}
	var list []document
	for i, item := range head.Items {
		d, err := decodeOne(item)
		if err != nil {
			return nil, strictjson.At(fmt.Sprintf("items[%d]", i), err)
		}
		list = append(list, d)
	}
	return list, nil
}

func decodeOne(data []byte) (d document, err error) {
	if err := strictjson.Unmarshal(data, &d); err != nil {
		return d, err
	}
	if d.APIVersion != apiVersion || d.Kind != kind {
		return d, fmt.Errorf("the document is a %.64q of %.64q, not a %s of %s", d.Kind, d.APIVersion, kind, apiVersion)
	}
	if d.Metadata.Namespace == "" {
		d.Metadata.Namespace = "default"
	}
	return d, nil
}
