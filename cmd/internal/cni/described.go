package cni

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/allocnet/allocnet/cmd/internal/netpolicy"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/policy"
)

// Annotations of a pod that the plugin reads.
const (
	labelsAnnotation = "allocnet/labels" // KEY=VALUE,KEY=VALUE
	policyAnnotation = "allocnet/policy" // presets or JSON, as in netpolicy.ReadText
)

// description collects the labels and the policy of a container from the places in which
// runtimes describe it.
type description struct {
	labels       map[string]string
	reserved     bool              // CNI_ARGS have labels of the namespace
	labelsOrigin map[string]string // by the keys of labels
	policy       *policy.Policy
	origin       string // of the policy
}

// describe adds the labels and the policy that the pod's annotations and CNI_ARGS contain to an
// allocation with those of the runtimeConfig. Two places must not contradict each other: a
// container must not replace a label that the operator takes from the runtime.
func (c *call) describe(a *configurator.Allocation) error {
	d := &description{labelsOrigin: map[string]string{}}
	for _, key := range slices.Sorted(maps.Keys(a.Labels)) {
		if err := d.ownLabel(key, a.Labels[key], "runtimeConfig.labels"); err != nil {
			return err
		}
	}
	if a.Policy != nil {
		d.policy, d.origin = a.Policy, "runtimeConfig.policy"
	}
	if err := d.fromAnnotations(c.conf.RuntimeConfig[conflist.PodAnnotationsCapability]); err != nil {
		return err
	}
	if err := d.fromArgs(c.conf, c.env.Args); err != nil {
		return err
	}
	a.Labels, a.AllowReservedLabels, a.Policy = d.labels, d.reserved, d.policy
	return nil
}

// fromAnnotations adds what the annotations of a pod contain.
func (d *description) fromAnnotations(value json.RawMessage) error {
	const place = "runtimeConfig: " + conflist.PodAnnotationsCapability
	if isNull(value) {
		return nil
	}
	var annotations map[string]string
	if err := json.Unmarshal(value, &annotations); err != nil {
		return badConfig("%s: %v", place, err)
	}
	if text, ok := annotations[labelsAnnotation]; ok && text != "" {
		for pair := range strings.SplitSeq(text, ",") {
			key, value, ok := strings.Cut(pair, "=")
			if !ok {
				return badConfig("%s: %s: %.64q is not of the form KEY=VALUE", place, labelsAnnotation, pair)
			}
			if err := d.ownLabel(strings.TrimSpace(key), strings.TrimSpace(value), "annotation "+labelsAnnotation); err != nil {
				return err
			}
		}
	}
	if text, ok := annotations[policyAnnotation]; ok {
		return d.enforce(text, "annotation "+policyAnnotation)
	}
	return nil
}

// fromArgs adds what CNI_ARGS contain under the names that the configuration has.
func (d *description) fromArgs(conf *config, text string) error {
	for _, key := range slices.Sorted(maps.Keys(conf.LabelsFrom)) {
		name := conf.LabelsFrom[key]
		value, ok, err := argument(text, name)
		switch origin, replaced := d.labelsOrigin[key]; {
		case err != nil:
		case ok:
			err = d.label(key, value, "CNI_ARGS: "+name)
			d.reserved = d.reserved || names.RefuseReserved(map[string]bool{key: true}) != nil
		case replaced:
			err = badConfig("label %q is in %s, but it comes from CNI_ARGS: %s, which is missing", key, origin, name)
		}
		if err != nil {
			return err
		}
	}
	if conf.PolicyFrom == "" {
		return nil
	}
	value, ok, err := argument(text, conf.PolicyFrom)
	if err != nil || !ok {
		return err
	}
	return d.enforce(value, "CNI_ARGS: "+conf.PolicyFrom)
}

// argument returns the value of one of CNI_ARGS. Its name must occur once: runtimes do not
// escape values, so a value with ";" could add another argument.
func argument(text, name string) (value string, ok bool, err error) {
	for pair := range strings.SplitSeq(text, ";") {
		if key, v, _ := strings.Cut(pair, "="); key == name {
			if ok {
				return "", false, badEnv("CNI_ARGS: %s occurs twice", name)
			}
			value, ok = v, true
		}
	}
	return value, ok, nil
}

// ownLabel adds a label from a place in which the author of a container may have chosen the key. Labels of
// namespaces come only from CNI_ARGS for which the operator has configured the key.
func (d *description) ownLabel(key, value, origin string) error {
	if err := names.RefuseReserved(map[string]string{key: value}); err != nil {
		return badConfig("%s: %v", origin, err)
	}
	return d.label(key, value, origin)
}

// label adds a label from a place. Runtimes and their users choose the texts, so one that is not valid in
// a label is escaped.
func (d *description) label(key, value, origin string) error {
	key, value = names.EscapeLabel(key, value)
	if other, ok := d.labels[key]; ok && other != value {
		return badConfig("label %q is %q in %s, and %q in %s", key, other, d.labelsOrigin[key], value, origin)
	}
	if d.labels == nil {
		d.labels = map[string]string{}
	}
	d.labels[key], d.labelsOrigin[key] = value, origin
	return nil
}

// enforce sets the policy from a place.
func (d *description) enforce(text, origin string) error {
	p, err := netpolicy.ReadText(text)
	if err != nil {
		return badConfig("%s: %v", origin, err)
	}
	if d.policy != nil {
		return badConfig("there is a policy in %s, and another one in %s", d.origin, origin)
	}
	d.policy, d.origin = p, origin
	return nil
}

// validateDescription checks where labels and policy come from.
func (c *config) validateDescription() error {
	for _, key := range slices.Sorted(maps.Keys(c.LabelsFrom)) {
		if err := names.ValidateLabelKey(key); err != nil {
			return badConfig("labelsFrom: %v", err)
		}
		if err := names.ValidateArgument(c.LabelsFrom[key]); err != nil {
			return badConfig("labelsFrom: label %q: %v", key, err)
		}
	}
	if c.PolicyFrom != "" {
		if err := names.ValidateArgument(c.PolicyFrom); err != nil {
			return badConfig("policyFrom: %v", err)
		}
	}
	return nil
}
