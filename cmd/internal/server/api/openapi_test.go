package api

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/wire"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// schemas are the types that have a schema in the description, by its name.
var schemas = map[string]reflect.Type{
	"Address": reflect.TypeFor[configurator.Address](), "Allocation": reflect.TypeFor[configurator.Allocation](),
	"Bandwidth": reflect.TypeFor[configurator.Bandwidth](), "DNS": reflect.TypeFor[configurator.DNS](),
	"IPRange": reflect.TypeFor[configurator.IPRange](), "Interface": reflect.TypeFor[configurator.Interface](),
	"Leftover": reflect.TypeFor[configurator.Leftover](), "Network": reflect.TypeFor[configurator.Network](),
	"NetworkRecord": reflect.TypeFor[configurator.NetworkRecord](), "PortWait": reflect.TypeFor[configurator.PortWait](), "Record": reflect.TypeFor[configurator.Record](),
	"Route": reflect.TypeFor[configurator.Route](), "Status": reflect.TypeFor[configurator.Status](),
	"Port": reflect.TypeFor[portmap.Port](), "Mapping": reflect.TypeFor[portmap.Mapping](),
	"Allocations": reflect.TypeFor[wire.Allocations](), "Applied": reflect.TypeFor[wire.Applied](),
	"StateDir": reflect.TypeFor[wire.StateDir](), "Found": reflect.TypeFor[wire.Found](), "Gone": reflect.TypeFor[wire.Gone](), "Check": reflect.TypeFor[wire.Check](),
	"Collect": reflect.TypeFor[wire.Collect](), "Collected": reflect.TypeFor[wire.Collected](),
	"Conflict": reflect.TypeFor[wire.Conflict](), "Error": reflect.TypeFor[wire.Error](),
	"History": reflect.TypeFor[wire.History](), "HistoryEntry": reflect.TypeFor[configurator.HistoryEntry](), "HistoryStep": reflect.TypeFor[configurator.HistoryStep](),
	"Failure": reflect.TypeFor[wire.Failure](), "Health": reflect.TypeFor[wire.Health](),
	"Networks": reflect.TypeFor[wire.Networks](), "NewSandbox": reflect.TypeFor[wire.NewSandbox](),
	"About": reflect.TypeFor[wire.About](), "InUse": reflect.TypeFor[wire.InUse](), "PortTaken": reflect.TypeFor[wire.PortTaken](),
	"PortFault": reflect.TypeFor[wire.Port](), "Readiness": reflect.TypeFor[wire.Readiness](),
	"Recovered": reflect.TypeFor[wire.Recovered](), "Selection": reflect.TypeFor[wire.Selection](),
	"SubnetFault": reflect.TypeFor[wire.Subnet](), "RecordFault": reflect.TypeFor[wire.Record](), "Repaired": reflect.TypeFor[wire.Repaired](),
	"Sandbox": reflect.TypeFor[wire.Sandbox](), "SkippedFile": reflect.TypeFor[wire.SkippedFile](),
	"CNIAttachment": reflect.TypeFor[types.GCAttachment](), "CNIRequest": reflect.TypeFor[cni.Request](),
	"CNIEnv": reflect.TypeFor[cni.Env](), "CNIResponse": reflect.TypeFor[cni.Response](),
	"HostStatus": reflect.TypeFor[client.HostStatus](), "DaemonStatus": reflect.TypeFor[client.DaemonStatus](),
	"NetworkStatus": reflect.TypeFor[client.NetworkStatus](), "AddressCounts": reflect.TypeFor[client.AddressCounts](),
	"PoolCounts": reflect.TypeFor[client.PoolCounts](), "AllocationCounts": reflect.TypeFor[client.AllocationCounts](),
	"Drift": reflect.TypeFor[client.Drift](), "Waiting": reflect.TypeFor[client.Waiting](), "Repairs": reflect.TypeFor[client.Repairs](),
	"RecentError": reflect.TypeFor[client.RecentError](), "Versions": reflect.TypeFor[client.Versions](),
	"DoctorSummary": reflect.TypeFor[client.DoctorSummary](), "DoctorFinding": reflect.TypeFor[client.DoctorFinding](),
	"HostTraffic": reflect.TypeFor[client.HostTraffic](), "AllocationTraffic": reflect.TypeFor[client.AllocationTraffic](),
	"InterfaceTraffic": reflect.TypeFor[client.InterfaceTraffic](), "Counters": reflect.TypeFor[client.Counters](),
	"HostDenials": reflect.TypeFor[client.HostDenials](), "DeniedFlow": reflect.TypeFor[client.DeniedFlow](), "UnlistedDenials": reflect.TypeFor[client.UnlistedDenials](),
	"CNIError": reflect.TypeFor[cni.Error](), "Listener": reflect.TypeFor[wire.Listener](), "Revision": reflect.TypeFor[wire.Revision](), "Change": reflect.TypeFor[configurator.Change](), "Attach": reflect.TypeFor[wire.Attach](), "Unserved": reflect.TypeFor[wire.Unserved](),
	"Policy": reflect.TypeFor[policy.Policy](), "PolicyDirection": reflect.TypeFor[policy.Direction](), "PolicyRule": reflect.TypeFor[policy.Rule](),
	"PolicyPeer": reflect.TypeFor[policy.Peer](), "PolicyService": reflect.TypeFor[policy.Service](), "PolicyRequirement": reflect.TypeFor[policy.Requirement](),
}

// peerForm is the form of a policy.Peer, which encodes itself.
type peerForm struct {
	CIDR        string               `json:"cidr,omitempty"`
	Labels      map[string]string    `json:"labels,omitempty"`
	Expressions []policy.Requirement `json:"expressions,omitempty"`
	Allocation  string               `json:"allocation,omitempty"`
	Name        string               `json:"name,omitempty"`
}

// optional are fields that this program always sends and a client may omit.
var optional = []string{"Allocation.id", "Allocation.netns"}

// neverNull are lists that are present even if empty.
var neverNull = []string{"Collect.live", "Allocations.allocations", "Networks.networks", "History.operations", "Networks.skipped", "Readiness.checks",
	"HostStatus.networks", "HostStatus.skipped", "HostStatus.drift", "HostStatus.errors", "HostStatus.problems", "DoctorSummary.findings",
	"HostTraffic.allocations", "HostTraffic.problems", "AllocationTraffic.interfaces", "HostDenials.flows", "HostDenials.problems"}

type schema = map[string]any

// schemaOf returns the schema of a type.
func schemaOf(t reflect.Type) schema {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return schema{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[json.RawMessage](), t.Kind() == reflect.Interface:
		return schema{"nullable": true}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.Struct:
		for name, known := range schemas {
			if known == t {
				return schema{"$ref": "#/components/schemas/" + name}
			}
		}
		panic("no schema is named for " + t.String())
	case reflect.Slice:
		return schema{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Map:
		values := schemaOf(t.Elem())
		if t.Elem().Kind() == reflect.Pointer { // null has a meaning
			values["nullable"] = true
		}
		return schema{"type": "object", "additionalProperties": values}
	case reflect.String:
		return schema{"type": "string"}
	case reflect.Bool:
		return schema{"type": "boolean"}
	case reflect.Uint8:
		return schema{"type": "integer", "minimum": 0., "maximum": 255.}
	case reflect.Uint, reflect.Uint64:
		return schema{"type": "integer", "minimum": 0.}
	case reflect.Int:
		return schema{"type": "integer"}
	case reflect.Float64:
		return schema{"type": "number"}
	}
	panic("no schema is known for " + t.String())
}

// objectOf returns the schema of a struct.
func objectOf(name string, t reflect.Type) schema {
	properties, required := schema{}, []any{}
	if t == reflect.TypeFor[policy.Peer]() {
		t = reflect.TypeFor[peerForm]()
	}
	for _, f := range reflect.VisibleFields(t) {
		field, omit, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || field == "-" {
			continue
		}
		s := schemaOf(f.Type)
		if omit == "" {
			if !slices.Contains(optional, name+"."+field) {
				required = append(required, field)
			}
			if f.Type.Kind() == reflect.Slice && f.Type != reflect.TypeFor[json.RawMessage]() && !slices.Contains(neverNull, name+"."+field) {
				s["nullable"] = true
			}
		}
		properties[field] = s
	}
	o := schema{"type": "object", "properties": properties, "additionalProperties": false}
	if name == "CNIEnv" { // a newer plugin may send more
		o["additionalProperties"] = schema{"type": "string"}
	}
	if len(required) > 0 {
		o["required"] = required
	}
	return o
}

// bare returns a schema without its descriptions.
func bare(v any) any {
	switch v := v.(type) {
	case schema:
		b := schema{}
		for key, value := range v {
			_, text := value.(string)
			if key != "description" || !text {
				b[key] = bare(value)
			}
		}
		return b
	case []any:
		b := make([]any, len(v))
		for i := range v {
			b[i] = bare(v[i])
		}
		return b
	}
	return v
}

func TestSchemasAreThoseOfTheTypes(t *testing.T) {
	var doc struct {
		Components struct{ Schemas map[string]any }
	}
	require.NoError(t, json.Unmarshal(description, &doc))
	var described, known []string
	for name, s := range doc.Components.Schemas {
		described = append(described, name)
		if typ, ok := schemas[name]; ok {
			require.Equal(t, objectOf(name, typ), bare(s), "schema %s", name)
		}
	}
	for name := range schemas {
		known = append(known, name)
	}
	require.ElementsMatch(t, known, described)
}

func TestEveryRouteIsDescribed(t *testing.T) {
	var doc struct {
		Paths map[string]map[string]any
	}
	require.NoError(t, json.Unmarshal(description, &doc))
	var described, served []string
	for path, methods := range doc.Paths {
		for method := range methods {
			if method != "parameters" {
				described = append(described, strings.ToUpper(method)+" "+path)
			}
		}
	}
	for _, r := range New(Options{Metrics: unused{}}).routes() {
		served = append(served, r.method+" "+r.path)
	}
	require.ElementsMatch(t, served, described)
}

func TestKindsAreDescribed(t *testing.T) {
	var doc struct {
		Components struct {
			Schemas struct {
				Error struct {
					Properties struct{ Kind struct{ Description string } }
				}
			}
		}
	}
	require.NoError(t, json.Unmarshal(description, &doc))
	for _, k := range wire.Kinds {
		require.Contains(t, doc.Components.Schemas.Error.Properties.Kind.Description, k.Word)
	}
}
