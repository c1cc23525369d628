package cni

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/policy"
)

const (
	policed   = `"delegate":"policed","labelsFrom":{"job":"NOMAD_JOB_ID","ns":"K8S_POD_NAMESPACE","` + namespace + `":"NAMESPACE"},"policyFrom":"POLICY"`
	namespace = "kubernetes.io.namespace.allocnet/metadata.name"
)

// annotated returns a runtimeConfig with the annotations of a pod.
func annotated(t *testing.T, annotations map[string]string) string {
	t.Helper()
	value, err := json.Marshal(map[string]any{conflist.PodAnnotationsCapability: annotations})
	require.NoError(t, err)
	return `,"runtimeConfig":` + string(value)
}

func newPoliced(t *testing.T) *workspace {
	t.Helper()
	w := newWorkspace(t, configurator.EngineNative)
	w.network("policed", `"1.0.0"`, w.bridge("brcni2", "10.67.0.0/24"), `{"type":"policy","capabilities":{"policy":true}}`)
	return w
}

// TestDescribed: labels and policies come from CNI_ARGS that the configuration names, and from
// the annotations of pods.
func TestDescribed(t *testing.T) {
	w := newPoliced(t)
	tests := []struct {
		name, args, config string
		labels             map[string]string
		policy             *policy.Policy
	}{
		{"nothing", "IgnoreUnknown=1;OTHER=x", "", nil, nil},
		{"arguments", "IgnoreUnknown=1;NOMAD_JOB_ID=web;POLICY=no-private, no-metadata", "", map[string]string{"job": "web"},
			&policy.Policy{Presets: []policy.Preset{policy.NoPrivate, policy.NoMetadata}}},
		{"policy in JSON", `POLICY={"ingress":{"default":"deny"}}`, "", nil, &policy.Policy{Ingress: &policy.Direction{Default: policy.Deny}}},
		{"annotations", "IgnoreUnknown=1;K8S_POD_NAMESPACE=prod", annotated(t, map[string]string{
			labelsAnnotation: "app=web, tier=1,ns=prod", policyAnnotation: "isolated", "other/key": "x;y",
		}), map[string]string{"app": "web", "tier": "1", "ns": "prod"}, &policy.Policy{Presets: []policy.Preset{policy.Isolated}}},
		{"texts that are no labels", "IgnoreUnknown=1;NOMAD_JOB_ID=backup/periodic-1764450000;K8S_POD_NAMESPACE=", annotated(t, map[string]string{
			labelsAnnotation: "a b = a b",
		}), map[string]string{
			"job": "backup-periodic-1764450000.sha256-4012c5e78fb8a3e383f0", "ns": "",
			"a-b.sha256-c8687a08aa5d6ed20443": "a-b.sha256-c8687a08aa5d6ed20443",
		}, nil},
		{"labels of a container", "", `,"runtimeConfig":{"labels":{"a b":"a b"}}`, map[string]string{"a-b.sha256-c8687a08aa5d6ed20443": "a-b.sha256-c8687a08aa5d6ed20443"}, nil},
		{"label of the namespace, which the operator takes from an argument", "NAMESPACE=shop", "", map[string]string{namespace: "shop"}, nil},
		{"other annotations", "", annotated(t, map[string]string{"a": "b"}), nil, nil},
		{"runtimeConfig as well", "NOMAD_JOB_ID=web", `,"runtimeConfig":{"labels":{"app":"web","job":"web"}}`, map[string]string{"app": "web", "job": "web"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			add := w.env("ADD", "c1")
			add.Args = tt.args
			conf := ours("1.0.0", policed+tt.config)
			w.serve(add, conf)
			r, err := w.c.Get(t.Context(), "c1.eth0")
			require.NoError(t, err)
			require.Equal(t, tt.labels, r.Labels)
			require.Equal(t, tt.policy, r.Policy)
			w.serve(add, conf) // the same request
			w.serve(as(add, "CHECK"), conf)
			w.serve(as(add, "DEL"), conf)
		})
	}
}

// TestDescribedWrongly: what cannot be understood, or contradicts something else, is refused
// before anything is done.
func TestDescribedWrongly(t *testing.T) {
	w := newPoliced(t)
	tests := []struct{ name, args, config, want string }{
		{"argument twice", "NOMAD_JOB_ID=web;X=y;NOMAD_JOB_ID=web", "", `CNI_ARGS: NOMAD_JOB_ID occurs twice`},
		{"policy twice", "POLICY=no-host;POLICY=isolated", "", `CNI_ARGS: POLICY occurs twice`},
		{"unknown preset", "POLICY=none", "", `CNI_ARGS: POLICY: "none" is neither a policy in JSON nor a list of presets`},
		{"empty policy", "POLICY=", "", `CNI_ARGS: POLICY: "" is neither`},
		{"path of a file", "POLICY=/etc/passwd", "", `"/etc/passwd" is neither`},
		{"policy with a typo", `POLICY={"ingres":{}}`, "", `CNI_ARGS: POLICY: parse policy: unknown field "ingres"`},
		{"annotation without a value", "", annotated(t, map[string]string{labelsAnnotation: "app"}), `allocnet/labels: "app" is not of the form KEY=VALUE`},
		{"annotation against an argument", "K8S_POD_NAMESPACE=dev", annotated(t, map[string]string{labelsAnnotation: "ns=prod"}),
			`label "ns" is "prod" in annotation allocnet/labels, and "dev" in CNI_ARGS: K8S_POD_NAMESPACE`},
		{"annotation in place of an argument", "", annotated(t, map[string]string{labelsAnnotation: "ns=prod"}),
			`label "ns" is in annotation allocnet/labels, but it comes from CNI_ARGS: K8S_POD_NAMESPACE, which is missing`},
		{"label twice", "", annotated(t, map[string]string{labelsAnnotation: "app=a,app=b"}), `label "app" is "a" in annotation allocnet/labels, and "b" in`},
		{"label of a namespace in an annotation", "NAMESPACE=shop", annotated(t, map[string]string{labelsAnnotation: namespace + "=shop"}),
			`annotation allocnet/labels: label "` + namespace + `" is reserved for labels of namespaces`},
		{"label of a namespace of a container", "", `,"runtimeConfig":{"labels":{"namespace.allocnet/team":"a"}}`,
			`runtimeConfig.labels: label "namespace.allocnet/team" is reserved for labels of namespaces`},
		{"two policies", "POLICY=isolated", annotated(t, map[string]string{policyAnnotation: "no-host"}),
			"there is a policy in annotation allocnet/policy, and another one in CNI_ARGS: POLICY"},
		{"annotation against the runtimeConfig", "", strings.Replace(annotated(t, map[string]string{policyAnnotation: "no-host"}), "{", `{"policy":{"presets":["isolated"]},`, 1),
			"there is a policy in runtimeConfig.policy, and another one in annotation allocnet/policy"},
		{"annotations that are no texts", "", `,"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"a":1}}`, "io.kubernetes.cri.pod-annotations: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			add := w.env("ADD", "c1")
			add.Args = tt.args
			e := w.refuse(add, ours("1.0.0", policed+tt.config))
			require.Contains(t, e.Msg, tt.want)
			require.Empty(t, w.records())
		})
	}
	for config, want := range map[string]string{
		`"labelsFrom":{"a b":"X"}`: `labelsFrom: label "a b"`, `"labelsFrom":{"a":""}`: `labelsFrom: label "a": "" is not the name of one of CNI_ARGS`,
		`"policyFrom":"A=B"`: `policyFrom: "A=B" is not the name`, `"labelsFrom":["a"]`: "labelsFrom",
	} {
		require.Contains(t, w.refuse(w.env("ADD", "c1"), ours("1.0.0", config)).Msg, want)
	}
	e := w.refuse(w.env("ADD", "c1"), ours("1.0.0", `"delegate":"br"`+annotated(t, map[string]string{policyAnnotation: "isolated"})))
	require.Contains(t, e.Error(), "policy", "the network enforces none")
	require.Empty(t, w.records())
}
