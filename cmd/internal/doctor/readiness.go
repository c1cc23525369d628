package doctor

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/allocnet/allocnet/cmd/internal/readiness"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/redact"
)

// checkReadiness asks whether Setups can be expected to work, and what the daemon does not serve.
func checkReadiness(ctx context.Context, h *Host) (findings []Finding, err error) {
	if h.Ready == nil {
		return nil, nil
	}
	checks, err := h.Ready(ctx)
	for _, c := range checks {
		if c.NoDefault() { // a host may have the embedded network only
			continue
		}
		for _, e := range parts(c.Err) {
			f := find("not-ready", cmp.Or(c.Network, "host"), redact.Text(e.Error()), "remove the cause, then: allocnet ready")
			f.cause = e
			findings = append(findings, f)
		}
		if c.Name == readiness.Listener && c.Warning != nil {
			findings = append(findings, find("not-served", "daemon", redact.Text(c.Warning.Error()), "end the process that has the address, or change the setting"))
		}
	}
	return findings, err
}

// parts returns the errors that errors.Join has joined in one.
func parts(err error) (list []error) {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var texts []string
	for _, e := range joined.Unwrap() {
		list, texts = append(list, parts(e)...), append(texts, e.Error())
	}
	if strings.Join(texts, "\n") != err.Error() { // one error with several causes
		return []error{err}
	}
	return list
}

// reason is a reason not to be ready about which there are findings of other kinds.
type reason struct {
	err error
	ids []string
}

var reasons = []reason{
	{configurator.ErrSubnetTaken, []string{"subnet-overlap", "subnet-shared"}},
	{configurator.ErrPluginNotInstalled, []string{"plugin-missing"}},
	{configurator.ErrUnprivileged, []string{"privileges"}},
	{configurator.ErrStateDir, []string{"state-dir", "disk-full"}},
	{configurator.ErrUnknownNetwork, []string{"network-missing"}},
	{configurator.ErrExhausted, []string{"addresses-exhausted"}},
}

// explains reports whether a finding says what another one says about readiness.
func (f *Finding) explains(other *Finding) bool {
	if f.ID == other.ID {
		return false
	}
	return strings.Contains(other.What, f.What) || slices.ContainsFunc(reasons, func(r reason) bool {
		return errors.Is(other.cause, r.err) && slices.Contains(r.ids, f.ID)
	})
}

// once returns findings without those of the kind not-ready that another one explains.
func once(findings []Finding) []Finding {
	return slices.DeleteFunc(slices.Clone(findings), func(f Finding) bool {
		return f.ID == "not-ready" && slices.ContainsFunc(findings, func(other Finding) bool { return other.explains(&f) })
	})
}
