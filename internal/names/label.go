package names

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// MaxLabels is the maximum number of labels of an allocation.
const MaxLabels = 256

var (
	labelName   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)
	labelPrefix = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
)

const maxLabelPrefix = 253

// NamespaceDomain is, at the end of a label's prefix, the mark of a label that belongs to the namespace of a
// pod. Package policy/networkpolicy makes such keys, by which policies tell the pods of different namespaces
// apart.
const NamespaceDomain = "namespace.allocnet"

// ValidateLabelKey checks the key of a label, which has the syntax of Kubernetes: a name of
// at most 63 characters, and before it, if any, a DNS name and a slash.
func ValidateLabelKey(key string) error {
	prefix, name, prefixed := strings.Cut(key, "/")
	if !prefixed {
		name = key
	}
	switch {
	case prefixed && (len(prefix) > maxLabelPrefix || !labelPrefix.MatchString(prefix)):
		return fmt.Errorf("label %.256q: what precedes '/' must be a DNS name in lower case", key)
	case !labelName.MatchString(name):
		return fmt.Errorf("label %.256q: the key must be at most 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit", key)
	}
	return nil
}

// ValidateLabels checks labels, and returns the first error in the order of their keys. A
// value is "" or has the syntax of the name in a key.
func ValidateLabels(labels map[string]string) error {
	if len(labels) > MaxLabels {
		return fmt.Errorf("%d labels: at most %d are possible", len(labels), MaxLabels)
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if err := ValidateLabelKey(key); err != nil {
			return err
		}
		if err := ValidateLabelValue(key, labels[key]); err != nil {
			return err
		}
	}
	return nil
}

// PortDomain is the mark of a label that stands for a named port of a pod.
const PortDomain = "port.allocnet"

// RefuseReserved returns an error if a key is that of a label of a namespace or of a named port. Only a caller that
// knows the namespace may set such a label, or an allocation could pretend to be in another one.
func RefuseReserved[V any](labels map[string]V) error {
	for key := range labels {
		prefix, _, prefixed := strings.Cut(key, "/")
		for domain, of := range map[string]string{NamespaceDomain: "namespaces", PortDomain: "ports"} {
			if prefixed && (prefix == domain || strings.HasSuffix(prefix, "."+domain)) {
				return fmt.Errorf("label %.256q is reserved for labels of %s", key, of)
			}
		}
	}
	return nil
}

// ValidateLabelValue checks the value of the label with a key, which only the error names.
func ValidateLabelValue(key, value string) error {
	if value != "" && !labelName.MatchString(value) {
		return fmt.Errorf("label %q: the value %.64q must be empty, or at most 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit", key, value)
	}
	return nil
}

// ChangeLabels returns labels after a change, in which nil removes a label, or the error of
// ValidateLabels. It does not change its arguments.
func ChangeLabels(labels map[string]string, change map[string]*string) (map[string]string, error) {
	after := maps.Clone(labels)
	for _, key := range slices.Sorted(maps.Keys(change)) {
		if err := ValidateLabelKey(key); err != nil {
			return nil, err
		}
		if change[key] == nil {
			delete(after, key)
			continue
		}
		if after == nil {
			after = map[string]string{}
		}
		after[key] = *change[key]
	}
	return after, ValidateLabels(after)
}
