package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/hashicorp/go-hclog"

	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/engine/native"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// checkConfiguration validates the settings of the daemon and the network configurations.
func checkConfiguration(_ context.Context, h *Host) (findings []Finding, err error) {
	for _, f := range h.Skipped {
		switch {
		case f.File == h.ConfDir && errors.Is(f.Err, fs.ErrNotExist): // only the embedded network exists
		case errors.Is(f.Err, conflist.ErrShadowed):
			findings = append(findings, find("configuration-shadowed", f.File, f.Error(), "rename the network in one of the files, or remove one"))
		default:
			findings = append(findings, find("configuration-skipped", f.File, f.Error(), "correct "+f.File+"; `allocnet networks` shows whether it is used"))
		}
	}
	engine := h.native()
	for _, n := range h.Networks {
		if err := engine.Validate(n, false); err != nil {
			findings = append(findings, find("configuration-invalid", n.Name, err.Error(), "correct "+n.File))
		}
	}
	return append(findings, h.settings()...), nil
}

// daemonSettings reads the file of the daemon's settings. It returns nil if there is none.
func (h *Host) daemonSettings() (*settings.Settings, error) {
	if h.Settings == "" {
		return nil, nil
	}
	if _, err := os.Stat(h.Settings); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	s, err := settings.Source{File: h.Settings}.Load()
	return &s, err
}

// namedIn returns the networks that settings name.
func namedIn(s *settings.Settings) []string {
	names := slices.Clone(s.Networks)
	if s.Manager.Enabled && s.Manager.Primary != "" {
		names = append(names, s.Manager.Primary)
	}
	for _, p := range s.Pool.Networks {
		names = append(names, p.Network)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// settings validates the file of the daemon's settings, and looks for the networks in it.
func (h *Host) settings() (findings []Finding) {
	s, err := h.daemonSettings()
	if err != nil {
		for _, e := range settings.Errors(err) {
			findings = append(findings, find("settings", h.Settings, e.Error(), "correct it, then: allocnetd validate "+h.Settings+" && systemctl reload-or-restart allocnetd"))
		}
		return findings
	}
	if s == nil {
		return nil
	}
	for _, name := range namedIn(s) {
		if !slices.ContainsFunc(h.Networks, func(n *conflist.Network) bool { return n.Name == name }) {
			findings = append(findings, find("network-missing", name, fmt.Sprintf("%s names network %q, and no valid file in %s has it", h.Settings, name, h.ConfDir),
				"add its file to "+h.ConfDir+", or change "+h.Settings))
		}
	}
	return findings
}

// pluginTime bounds a VERSION call of one plugin.
const pluginTime = 5 * time.Second

// checkPlugins looks at the plugin directories, and asks the plugins that run as binaries for
// their versions.
func checkPlugins(ctx context.Context, h *Host) (findings []Finding, err error) {
	dirs := h.PluginDirs
	if len(dirs) == 0 {
		dirs = configurator.DefaultPluginDirs()
	}
	for _, dir := range dirs {
		found, err := h.pluginDir(dir)
		if err != nil {
			return findings, err
		}
		findings = append(findings, found...)
	}
	engine := h.native()
	versions := map[string]versionAnswer{}
	for _, n := range h.Networks {
		if n.File == "" && !h.used(n.Name) {
			continue // the embedded network needs binaries only if it is used
		}
		for _, t := range engine.Binaries(n) {
			path, err := invoke.FindInPath(t, pluginexec.Dirs(h.VendorDir, dirs, t))
			if err != nil {
				findings = append(findings, find("plugin-missing", n.Name, fmt.Sprintf("network %q needs plugin %q, which is in none of %s", n.Name, t, strings.Join(dirs, ", ")),
					"install it there (Debian: apt-get install containernetworking-plugins), or name its directory in plugin_dirs"))
				continue
			}
			if _, asked := versions[path]; !asked {
				versions[path] = askVersion(ctx, path)
			}
			findings = append(findings, versions[path].suits(n, path)...)
		}
	}
	return findings, nil
}

// native returns the engine that tells which plugins run as binaries, and validates the others.
func (h *Host) native() *native.Engine {
	if h.Engine == configurator.EngineExec {
		return native.NewForBinaries(hclog.NewNullLogger(), "")
	}
	return native.New(hclog.NewNullLogger(), "")
}

// used reports whether an allocation is attached to a network, or the next one can be: the embedded network is
// the default without others, and the settings may name it.
func (h *Host) used(network string) bool {
	if !slices.ContainsFunc(h.Networks, func(n *conflist.Network) bool { return n.File != "" }) {
		return true
	}
	if slices.ContainsFunc(h.records, func(r configurator.Record) bool {
		return slices.ContainsFunc(r.Networks, func(n configurator.NetworkRecord) bool { return n.Network == network })
	}) {
		return true
	}
	s, err := h.daemonSettings() // checkConfiguration reports the error
	return err == nil && s != nil && slices.Contains(namedIn(s), network)
}

// pluginDir looks at one plugin directory. Only a named directory has to exist.
func (h *Host) pluginDir(dir string) (findings []Finding, err error) {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if slices.Contains(configurator.DefaultPluginDirs(), dir) {
			return nil, nil
		}
		return []Finding{find("plugin-dir", dir, "plugin directory "+dir+" does not exist", "mkdir -p "+dir+", or remove it from plugin_dirs")}, nil
	case err != nil:
		return nil, err
	case !info.IsDir():
		return []Finding{find("plugin-dir", dir, dir+" is not a directory", "remove it from plugin_dirs")}, nil
	}
	if info.Mode()&0o002 != 0 {
		findings = append(findings, find("plugin-dir-writable", dir, fmt.Sprintf("plugin directory %s can be written by all users (%s)", dir, info.Mode()), "chmod o-w "+dir))
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return findings, err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && e.Type()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(path)
			findings = append(findings, find("plugin-broken", path, fmt.Sprintf("plugin %s is a link to %s, which does not exist", path, target),
				"allocnet plugins install "+dir+" "+e.Name()+", or rm "+path))
		case err == nil && info.Mode().IsRegular() && info.Mode()&0o002 != 0:
			findings = append(findings, find("plugin-dir-writable", path, fmt.Sprintf("plugin %s can be written by all users (%s)", path, info.Mode()), "chmod o-w "+path))
		}
	}
	return findings, nil
}

// versionAnswer is what a plugin answered to VERSION.
type versionAnswer struct {
	supported []string
	err       error
}

func askVersion(ctx context.Context, path string) versionAnswer {
	ctx, cancel := context.WithTimeout(ctx, pluginTime)
	defer cancel()
	info, err := invoke.GetVersionInfo(ctx, path, nil)
	if err != nil {
		return versionAnswer{err: err}
	}
	return versionAnswer{supported: info.SupportedVersions()}
}

// suits returns a finding if the plugin at a path does not understand a network.
func (v versionAnswer) suits(n *conflist.Network, path string) []Finding {
	switch {
	case v.err != nil:
		return []Finding{find("plugin-broken", path, fmt.Sprintf("plugin %s of network %q does not answer VERSION: %v", path, n.Name, v.err), "install the plugin again")}
	case !slices.Contains(v.supported, n.List.CNIVersion):
		return []Finding{find("plugin-version", n.Name, fmt.Sprintf("network %q has cniVersion %s, and plugin %s supports %s", n.Name, n.List.CNIVersion, path, strings.Join(v.supported, ", ")),
			"install a newer plugin, or lower cniVersion in "+n.File)}
	}
	return nil
}
