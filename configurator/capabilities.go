package configurator

import (
	"slices"

	"github.com/allocnet/allocnet/internal/plan"
	policyplugin "github.com/allocnet/allocnet/internal/plugins/policy"
)

// requireServed returns an *UnservedError if no plugin declares a requested capability.
// With Config.AllowUnserved, it logs a warning instead, except for a network policy: an
// allocation that seems to have one, and has none, is open. If nothing is unserved, it
// returns the error of an unreadable configuration.
func (c *Configurator) requireServed(p *plan.Plan) error {
	names := p.Undeclared()
	if len(names) == 0 {
		return p.Unreadable
	}
	if slices.Equal(names, []string{policyplugin.Capability}) || c.cfg.AllowUnserved && slices.Contains(names, policyplugin.Capability) {
		return p.RequirePolicies(p.Policy)
	}
	if !c.cfg.AllowUnserved {
		return p.UnservedError(names...)
	}
	c.cfg.Logger.Warn("no plugin of the networks declares capabilities that the allocation requests; they have no effect",
		"alloc", p.ID, "capabilities", names)
	return nil
}
