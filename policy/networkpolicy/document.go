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

// list is a list of documents, as kubectl and the API server write it.
type list struct {
	APIVersion string             `json:"apiVersion"`
	Kind       string             `json:"kind"`
	Metadata   json.RawMessage    `json:"metadata"`
	Items      *[]json.RawMessage `json:"items"`
}

// decode returns the documents in data: one, or those of a list.
func decode(data []byte) ([]document, error) {
	var head struct {
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("not a JSON document: %w", err)
	}
	version, isList := map[string]string{"List": "v1", kind + "List": apiVersion}[head.Kind]
	if !isList {
		d, err := decodeOne(data, document{})
		return []document{d}, err
	}
	var l list
	if err := strictjson.Unmarshal(data, &l); err != nil {
		return nil, err
	}
	switch {
	case l.APIVersion != "" && l.APIVersion != version:
		return nil, fmt.Errorf("the list is a %.64q of %.64q, not of %s", l.Kind, l.APIVersion, version)
	case l.Items == nil:
		return nil, errors.New("items: the list has none; an empty list is []")
	}
	var of document
	if l.Kind == kind+"List" { // the API server leaves these out of the items
		of.APIVersion, of.Kind = apiVersion, kind
	}
	documents := []document{}
	for i, item := range *l.Items {
		d, err := decodeOne(item, of)
		if err != nil {
			return nil, strictjson.At(fmt.Sprintf("items[%d]", i), err)
		}
		documents = append(documents, d)
	}
	return documents, nil
}

// decodeOne decodes one document. What it leaves out is as in of.
func decodeOne(data []byte, of document) (document, error) {
	d := of
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
