package configurator

import (
	"slices"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/state/record"
)

// instanceOf is the instance of the owner of what an allocation has in the kernel.
// It is the record's, and not that of the directory that the record is found in: a
// directory can be moved. Where an older version noted none, the links that its ADD
// made tell, as their names come from their owner; nil means that of the Config.
func (c *Configurator) instanceOf(r *record.Record) *string {
	if r.Instance != nil {
		return r.Instance
	}
	for i, former := range c.formerInstances {
		if slices.ContainsFunc(r.Attachments, func(a record.Attachment) bool { return madeBy(r, &a, former) }) {
			return &c.formerInstances[i]
		}
	}
	return nil
}

// madeBy reports whether an attachment's result has a link of that owner.
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
