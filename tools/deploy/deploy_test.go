package deploy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/jobspec2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestDaemonSet decodes the DaemonSet strictly into the types of Kubernetes,
// and checks that what refers to something in it finds it.
func TestDaemonSet(t *testing.T) {
	text, err := os.ReadFile("../../deploy/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var d appsv1.DaemonSet
	if err := yaml.UnmarshalStrict(text, &d); err != nil {
		t.Fatal(err)
	}
	if d.APIVersion != "apps/v1" || d.Kind != "DaemonSet" {
		t.Errorf("%s %s", d.APIVersion, d.Kind)
	}
	labels := d.Spec.Template.Labels
	for key, value := range d.Spec.Selector.MatchLabels {
		if labels[key] != value {
			t.Errorf("label %s of the template is %q, selected is %q", key, labels[key], value)
		}
	}
	pod := d.Spec.Template.Spec
	if !pod.HostNetwork || !pod.HostPID || pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		t.Error("it needs the node's namespaces, and no token")
	}
	if !slices.ContainsFunc(pod.Tolerations, func(o corev1.Toleration) bool { return o.Key == "" && o.Operator == corev1.TolerationOpExists }) {
		t.Error("it does not run on nodes with taints")
	}
	volumes := map[string]string{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = v.HostPath.Path
	}
	for _, c := range append(slices.Clone(pod.InitContainers), pod.Containers...) {
		for _, m := range c.VolumeMounts {
			// /var/run is a link to /run on the node.
			if path := volumes[m.Name]; path != m.MountPath && "/var"+path != m.MountPath {
				t.Errorf("%s: %s is mounted from %q: paths mean the same only if they are equal", c.Name, m.MountPath, path)
			}
		}
	}
	flannel := func(m corev1.VolumeMount) bool { return m.MountPath == "/run/flannel" }
	if !slices.ContainsFunc(pod.Containers[0].VolumeMounts, flannel) {
		t.Error("allocnetd cannot read the subnets that flanneld leases")
	}
	for _, probe := range []*corev1.Probe{pod.Containers[0].StartupProbe, pod.Containers[0].LivenessProbe, pod.Containers[0].ReadinessProbe} {
		if probe == nil || probe.Exec == nil {
			t.Error("a probe is missing")
		}
	}
}

// TestNomadJob parses the job as Nomad does.
func TestNomadJob(t *testing.T) {
	job := parse(t, "../../deploy/nomad.hcl")
	if *job.ID != "allocnet" || *job.Type != "system" || len(job.TaskGroups) != 1 || len(job.TaskGroups[0].Tasks) != 2 {
		t.Errorf("%+v", job)
	}
}

// TestNomadExamples parses the jobs of the documentation. What Nomad makes of their
// networks is testdata of the package nomad; with UPDATE=1, the test writes it.
func TestNomadExamples(t *testing.T) {
	files, err := filepath.Glob("../../docs/nomad/*.nomad.hcl")
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		job := parse(t, file)
		got, err := json.MarshalIndent(job.TaskGroups[0].Networks, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, '\n')
		golden := "../../nomad/testdata/" + strings.TrimSuffix(filepath.Base(file), ".nomad.hcl") + ".json"
		if os.Getenv("UPDATE") != "" {
			if err := os.WriteFile(golden, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil || string(want) != string(got) {
			t.Errorf("%s of %s: %v; it should be\n%s", golden, file, err, got)
		}
	}
}

// parse parses a job as Nomad does, and refuses unknown names.
func parse(t *testing.T, file string) *api.Job {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	job, err := jobspec2.ParseWithConfig(&jobspec2.ParseConfig{Path: file, Body: text, Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	return job
}
