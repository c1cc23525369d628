package configurator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/allocnet/allocnet/cleanup"
	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/plugins/builtin"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/lease"
	"github.com/allocnet/allocnet/internal/state/netns"
)

// Plugins may change what those before them have made: sbr moves routes, others the MAC address or the
// addresses (CNI specification, section 4). The results of ADD do not always tell. So what differs from them
// right after ADD is no damage: noteDifferences records it, and CHECK does not report it.

// noteTime bounds the CHECK after an ADD.
const noteTime = 5 * time.Second

// noteDifferences records what CHECK would report right after ADD if plugins have run as binaries. If
// that cannot be found out, nothing is recorded.
func (c *Configurator) noteDifferences(ctx context.Context, p *plan.Plan) {
	if c.runsInProcess(p) {
		return
	}
	missing, err := missingInside(p.Record, true)
	for _, m := range missing {
		p.Absent = append(p.Absent, m.what)
	}
	if err == nil && c.mayDiffer(p) {
		err = c.noteFindings(ctx, p)
	}
	if err != nil {
		c.cfg.Logger.Warn("CHECK may report differences that were there right after ADD", "alloc", p.ID, "because", redact.Text(err.Error()))
	}
}

// mayDiffer reports whether CHECK may report a difference right after ADD, although all plugins are correct: if a
// plugin that allocnet does not know has run after another one. Besides, that of the reference plugin bridge
// always fails without IPAM.
func (c *Configurator) mayDiffer(p *plan.Plan) bool {
	follows := false
	for i, n := range p.Networks {
		for _, plugin := range n.List.Plugins {
			name := plugin.Network.Type
			_, known := builtin.Plugins[name]
			byBinary := Engine(p.Engine) != EngineNative || slices.Contains(p.Attachments[i].Binaries, name)
			if !known && follows || name == "bridge" && plugin.Network.IPAM.Type == "" && byBinary {
				return true
			}
			follows = follows || name != "loopback"
		}
	}
	return false
}

// noteFindings runs CHECK until it reports only what it has reported before, and records that.
func (c *Configurator) noteFindings(ctx context.Context, p *plan.Plan) error {
	timeout := noteTime
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, deadline.Sub(c.now())/4)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	e, err := c.engine(p)
	for tries := 0; err == nil; tries++ {
		req, requestErr := c.request(p)
		if requestErr != nil {
			return requestErr
		}
		checkErr := e.Check(ctx, req)
		var found *engine.CheckError
		switch {
		case checkErr == nil, errors.Is(checkErr, engine.ErrCheckUnsupported):
			return nil
		case !errors.As(checkErr, &found) || !isPluginFault(checkErr) || ctx.Err() != nil || tries > maxFindings:
			err = checkErr
		default:
			a := &p.Attachments[found.Attachment]
			if a.Known = maps.Clone(a.Known); a.Known == nil {
				a.Known = map[int][]string{}
			}
			a.Known[found.Plugin] = append(slices.Clone(a.Known[found.Plugin]), found.Findings...)
			c.logFindings(a.Network, found)
		}
	}
	return err
}

// maxFindings bounds the CHECKs after an ADD. A plugin whose findings are never the same cannot be compared.
const maxFindings = 16

// logFindings logs once for a network what its CHECK reports right after ADD.
func (c *Configurator) logFindings(network string, found *engine.CheckError) {
	if c.warned.first(fmt.Sprintf("%s finds %d %s", network, found.Plugin, found.Type)) {
		c.cfg.Logger.Info("CHECK of a plugin reports a difference right after ADD, which is not taken for damage: a later plugin has made it, or the plugin has no CHECK for its configuration",
			"network", network, "plugin", found.Type, "found", redact.Text(found.Error()))
	}
}

// isLost reports whether a network that cannot be repaired because of found lacks an object that its ADD has made, so
// that only another ADD can help: its namespace, an interface, an address or a route in it, a lease, or rules that
// binaries have added. Other findings are no reason to remove what works.
func (c *Configurator) isLost(ctx context.Context, p *plan.Plan, found error) bool {
	if netns.IsMissing(found) || errors.Is(found, lease.ErrTaken) {
		return true
	}
	missing, err := missingInside(p.Record, true)
	if isFault(err) || slices.ContainsFunc(missing, func(m missingObject) bool { return !slices.Contains(p.Absent, m.what) }) {
		return true
	}
	var check *engine.CheckError
	if !errors.As(found, &check) || !check.Binary {
		return false
	}
	// The CHECK of these plugins looks for what they have added, and for nothing else. Allocnet's own plugins, as
	// binaries, say it.
	return slices.Contains([]string{"bandwidth", "firewall", "portmap"}, check.Type) || strings.Contains(found.Error(), ruleset.ErrMissing.Error()) ||
		c.lacksBridge(p) || c.lacksLease(ctx, p)
}

// lacksBridge reports whether a bridge is gone that an ADD has created.
func (c *Configurator) lacksBridge(p *plan.Plan) bool {
	status, err := plan.StatusOf(p.Record)
	if err != nil {
		return false
	}
	for _, i := range status.Interfaces {
		if i.Sandbox != "" {
			continue
		}
		if _, err := rtnl.LinkByName(i.Name); !rtnl.IsNotFound(err) {
			continue
		}
		if created, err := c.bridges.Recorded(i.Name, 0); created && err == nil {
			return true
		}
	}
	return false
}

// lacksLease reports whether a lease of host-local is gone.
func (c *Configurator) lacksLease(ctx context.Context, p *plan.Plan) bool {
	there, err := cleanup.Audit(ctx, c.cleanupTarget(p))
	if err != nil {
		return false
	}
	for i, n := range p.Networks {
		result, err := engine.ParseResult(p.Attachments[i].Result)
		if err != nil || n == nil || !slices.Contains(n.IPAMTypes(), "host-local") {
			continue
		}
		for _, addr := range addressesOf(result) {
			if !slices.ContainsFunc(there, func(l cleanup.Leftover) bool {
				return l.Kind == cleanup.KindLease && l.Network == n.Name && l.Object == addr.String()
			}) {
				return true
			}
		}
	}
	return false
}
