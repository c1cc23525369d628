package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
)

// Difference returns the name of the first parameter in which two requests for one ID differ,
// or "". It does not compare the network namespaces.
func Difference(a, b *record.Record) string {
	for _, part := range []struct {
		name string
		a, b any
	}{
		{fmt.Sprintf("list of networks (%s)", strings.Join(a.Requested, ", ")), a.Requested, b.Requested},
		{"list of networks (of its own)", inlineConfigs(a), inlineConfigs(b)},
		{"interface (" + a.Interface + ")", a.Interface, b.Interface},
		{"container ID (" + a.ContainerID + ")", a.ContainerID, b.ContainerID},
		{"scope (" + a.Scope + ")", a.Scope, b.Scope},
		{"set of labels", nonNil(a.Labels), nonNil(b.Labels)},
		{"policy", a.Policy, b.Policy},
		{"prevResult", a.Previous, b.Previous},
		{"set of ports", sortedMappings(a.RequestedPorts), sortedMappings(b.RequestedPorts)},
		{"set of CNI_ARGS", a.Args, b.Args},
		{"set of capability arguments", withoutPorts(a.Capabilities), withoutPorts(b.Capabilities)},
	} {
		if !sameJSON(part.a, part.b) {
			return part.name
		}
	}
	return ""
}

// inlineConfigs returns the configuration lists that an allocation contained.
func inlineConfigs(r *record.Record) []string {
	var texts []string
	for _, a := range r.Attachments {
		if r.Inline {
			texts = append(texts, string(a.Config))
		}
	}
	return texts
}

// sortedMappings returns the mappings of ports, which may be requested in several ways, without
// the labels, which have no effect on the network.
func sortedMappings(ports []portmap.Port) []string {
	mappings, _ := portmap.Mappings(ports, portmap.Options{}) // a record has valid ones
	texts := make([]string, len(mappings))
	for i, m := range mappings {
		texts[i] = fmt.Sprint(unlabelled(m))
	}
	slices.Sort(texts)
	return texts
}

// withoutPorts removes the ports, which difference compares separately, and limits of bandwidth
// that limit nothing.
func withoutPorts(capabilities map[string]json.RawMessage) map[string]json.RawMessage {
	others := maps.Clone(capabilities)
	delete(others, portmap.Capability)
	if IsEmpty(others[Bandwidth]) {
		delete(others, Bandwidth)
	}
	if len(others) == 0 {
		return nil
	}
	return others
}

// nonNil returns labels of which no labels and nil are the same.
func nonNil(labels map[string]string) map[string]string {
	if labels == nil {
		return map[string]string{}
	}
	return labels
}

// sameJSON compares values by their JSON, because one of them may come from a file.
func sameJSON(a, b any) bool {
	var decoded [2]any
	for i, v := range []any{a, b} {
		data, err := json.Marshal(v)
		if err != nil || json.Unmarshal(data, &decoded[i]) != nil {
			return false
		}
	}
	return reflect.DeepEqual(decoded[0], decoded[1])
}
