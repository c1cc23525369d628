package configurator

import (
	"slices"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/state/record"
)

// instanceOf returns the instance in the owner of the allocation's kernel objects. It
// is the recorded one, because the state directory may have been moved since. Records
// of older versions have none; then the link names in their results show which former
// instance it was, as these names are derived from the owner. So do those of allocnet's
// plugin binaries, which had none in older versions.
func (c *Configurator) instanceOf(r *record.Record) *string {
	if r.Instance != nil && (r.Engine != string(EngineExec) || !hasMade(r, "")) {
		return r.Instance
	}
	for i, former := range c.formerInstances {
		if hasMade(r, former) {
			return &c.formerInstances[i]
		}
	}
	return &c.instance
}

// hasMade is madeBy for any attachment.
func hasMade(r *record.Record, instance string) bool {
	return slices.ContainsFunc(r.Attachments, func(a record.Attachment) bool { return madeBy(r, &a, instance) })
}

// madeBy reports whether the result of an attachment contains a link whose name is
// derived from the given instance.
func madeBy(r *record.Record, a *record.Attachment, instance string) bool {
	result, err := engine.ParseResult(a.Result)
	if err != nil {
		return false
	}
	veth := names.Owner{Network: a.Network, ID: r.Container(), IfName: a.IfName, Instance: instance}.Veth()
	for _, i := range result.Interfaces {
		if i.Sandbox == "" && i.Name == veth {
			return true
		}
	}
	return false
}
