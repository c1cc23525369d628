package configurator

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

// difference names the part in which two requests for one ID differ, but for the network
// namespace.
func difference(a, b *record.Record) string {
	for _, part := range []struct {
		name string
		a, b any
	}{
		{fmt.Sprintf("list of networks (%s)", strings.Join(a.Asked, ", ")), a.Asked, b.Asked},
		{"list of networks (of its own)", inlineConfigs(a), inlineConfigs(b)},
		{"interface (" + a.Interface + ")", a.Interface, b.Interface},
		{"container ID (" + a.ContainerID + ")", a.ContainerID, b.ContainerID},
		{"scope (" + a.Scope + ")", a.Scope, b.Scope},
		{"prevResult", a.Previous, b.Previous},
		{"set of ports", withoutLabels(a.AskedPorts), withoutLabels(b.AskedPorts)},
		{"set of CNI_ARGS", a.Args, b.Args},
		{"set of capability arguments", withoutPorts(a.Capabilities), withoutPorts(b.Capabilities)},
	} {
		if !sameJSON(part.a, part.b) {
			return part.name
		}
	}
	return ""
}

// inlined are the configurations that an allocation brought along.
func inlineConfigs(r *record.Record) []string {
	var texts []string
	for _, a := range r.Attachments {
		if r.Inline {
			texts = append(texts, string(a.Config))
		}
	}
	return texts
}

// unlabelled leaves out what is only for people.
func withoutLabels(ports []portmap.Port) []portmap.Port {
	ports = slices.Clone(ports)
	for i := range ports {
		ports[i].Label = ""
	}
	return ports
}

// withoutPorts leaves out what is compared by itself.
func withoutPorts(capabilities map[string]json.RawMessage) map[string]json.RawMessage {
	others := maps.Clone(capabilities)
	delete(others, "portMappings")
	if len(others) == 0 {
		return nil
	}
	return others
}

// sameJSON compares what one side may have read back from a file.
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
