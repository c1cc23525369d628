package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/cmd/internal/pluginfiles"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/internal/plugins/builtin"
)

func newPlugins(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "plugins",
		Short: "Install the native plugins for other container runtimes",
		Long: `Install the native plugins for other container runtimes, as plugin binaries: the
program ` + pluginfiles.ProgramName + ` selects the plugin by the name under which it is started
(argv[0]).

allocnet itself needs no links: it runs the plugins in its own process.`,
		Example: `  allocnet plugins list
  allocnet plugins install /opt/cni/bin
  allocnet plugins uninstall /opt/cni/bin`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.runSubcommand,
	}
	c.AddCommand(newPluginsList(a), newPluginsInstall(a), newPluginsUninstall(a))
	return c
}

func newPluginsList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "list",
		Aliases:           []string{"ls"},
		Short:             "List the native plugins",
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			if a.flags.json {
				return a.out.JSON(map[string]any{"plugins": pluginNames()})
			}
			a.out.Printf("%s\n", strings.Join(pluginNames(), "\n"))
			return nil
		},
	}
}

func newPluginsInstall(a *app) *cobra.Command {
	var program, copyTo string
	var daemon, force, keep bool
	c := &cobra.Command{
		Use:   "install DIR [PLUGIN...]",
		Short: "Install links to the native plugins for a container runtime",
		Long: `Install the native plugins for a container runtime: create a symbolic link to the
program ` + pluginfiles.ProgramName + ` in DIR, the runtime's plugin directory, for each plugin or
only for the named ones. The command first calls the program through every link. The
links point to the program's path, which must not change with updates.

With --daemon, the links lead to ` + pluginfiles.ShimName + `, which is beside that program. It
sends each call to allocnetd, which runs the plugin in a fraction of the time. The daemon
must listen on its default socket. While it is not running, and for calls that it does
not serve, the plugins do the same work without it. Repeat the command with or without
--daemon to change that at any time: each kind removes what the other one has set up.

Repeat the command to update the links, also while the runtime runs: each file is
replaced by a rename. An existing file that is not a link of allocnet is an error.
With --force it is kept as NAME` + pluginfiles.AsideSuffix + `, and uninstall restores it. With
--keep the file stays, and the link is not installed.

--copy-to is for containers that install allocnet on their host: it first copies the
programs of allocnet into a directory, which must have the same path in the container
and on the host. The links point there, including one named allocnet, for the plugin of
that type.`,
		Example: `  allocnet plugins install /opt/cni/bin
  allocnet plugins install /opt/cni/bin loopback
  allocnet plugins install /opt/cni/bin --daemon
  allocnet plugins install /usr/lib/cni --force
  allocnet plugins install /opt/cni/bin --program /usr/local/bin/` + pluginfiles.ProgramName + `
  allocnet plugins install /opt/cni/bin loopback --keep --copy-to /opt/allocnet`,
		Args:              dirAndPlugins,
		ValidArgsFunction: completeDirAndPlugins,
		RunE: func(c *cobra.Command, args []string) error {
			l, err := linksToInstall(args, program, copyTo, daemon)
			if err != nil {
				return err
			}
			l.Keep = keep
			return a.installPlugins(c, l, force)
		},
	}
	programFlag(c, &program)
	c.Flags().BoolVar(&daemon, "daemon", false, "have allocnetd run the plugins while it is running")
	c.Flags().BoolVar(&force, "force", false, "replace other files, and keep them as NAME"+pluginfiles.AsideSuffix)
	c.Flags().BoolVar(&keep, "keep", false, "keep other files, and install only what is missing")
	c.Flags().StringVar(&copyTo, "copy-to", "", "directory to copy the programs to, and to link to")
	c.MarkFlagsMutuallyExclusive("force", "keep")
	c.MarkFlagsMutuallyExclusive("program", "copy-to")
	_ = c.MarkFlagDirname("copy-to")
	return c
}

// linksToInstall returns the links of the arguments, after it has copied the programs to copyTo if that is
// not "".
func linksToInstall(args []string, program, copyTo string, daemon bool) (*pluginfiles.Links, error) {
	l, err := newPluginLinks(args[0], program, args[1:])
	if err == nil && copyTo != "" {
		err = l.CopyPrograms(copyTo)
	}
	if err != nil {
		return nil, err
	}
	if daemon {
		l.Program = filepath.Join(filepath.Dir(l.Program), pluginfiles.ShimName)
	}
	return l, nil
}

func newPluginsUninstall(a *app) *cobra.Command {
	var program string
	var force bool
	c := &cobra.Command{
		Use:   "uninstall DIR [PLUGIN...]",
		Short: "Remove the native plugins' links",
		Long: `Remove the native plugins' links that install put into DIR, or only those of the named
plugins, and restore the files that they replaced. Everything else stays.

Attachments that runtimes made with the native plugins, in networks that name no
backend, have elements of allocnet's own nftables tables, which the DEL of other
plugins does not remove. While there are any, bridge, ptp, flannel, firewall, portmap
and routes stay, and the error names the attachments: remove them first. If a plugin
replaced no file, first stop the containers that use it. --force uninstalls without
this check.`,
		Example: `  allocnet plugins uninstall /opt/cni/bin
  allocnet plugins uninstall /opt/cni/bin loopback`,
		Args:              dirAndPlugins,
		ValidArgsFunction: completeDirAndPlugins,
		RunE: func(c *cobra.Command, args []string) error {
			l, err := newPluginLinks(args[0], program, args[1:])
			if err != nil {
				return err
			}
			may := func() error { return requireUnattached(c.Context()) }
			if force {
				may = func() error { return nil }
			}
			return a.uninstallPlugins(l, may)
		},
	}
	programFlag(c, &program)
	c.Flags().BoolVar(&force, "force", false, "uninstall although attachments need the plugins")
	return c
}

func programFlag(c *cobra.Command, program *string) {
	c.Flags().StringVar(program, "program", "", "path of "+pluginfiles.ProgramName+" (default beside this program)")
	_ = c.MarkFlagFilename("program")
}

func dirAndPlugins(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usagef("give a plugin directory, like /opt/cni/bin")
	}
	for _, name := range args[1:] {
		if !slices.Contains(pluginNames(), name) {
			return usagef("%q is not a native plugin; they are: %s", name, strings.Join(pluginNames(), ", "))
		}
	}
	return nil
}

func completeDirAndPlugins(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return pluginNames(), cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// pluginNames returns the names of the native plugins.
func pluginNames() []string { return slices.Sorted(maps.Keys(builtin.DropIns)) }

// pluginsReport is the result of install or uninstall.
type pluginsReport struct {
	Dir     string             `json:"dir"`
	Program string             `json:"program"`
	Plugins []pluginfiles.Link `json:"plugins"`
}

func (a *app) installPlugins(c *cobra.Command, l *pluginfiles.Links, force bool) error {
	if err := l.CheckProgram(); err != nil {
		return err
	}
	done := a.progress("calling %s", l.Program)
	links, err := l.Install(c.Context(), force, a.flags.timeout)
	done()
	if err != nil && !slices.ContainsFunc(links, func(p pluginfiles.Link) bool { return p.State == pluginfiles.Installed }) {
		return err
	}
	verb := "lead"
	if len(links) == 1 {
		verb = "leads"
	}
	return a.printPlugins(l, links, err, fmt.Sprintf("%s in %s %s to %s", term.Plural(len(links), "plugin"), l.Dir, verb, l.Program))
}

// uninstallPlugins removes links and prints the changes.
func (a *app) uninstallPlugins(l *pluginfiles.Links, may func() error) error {
	links, err := l.Uninstall(may)
	if links == nil && err != nil {
		return err
	}
	summary := fmt.Sprintf("no link of allocnet is left in %s", l.Dir)
	if len(l.Names) < len(pluginNames()) {
		summary = fmt.Sprintf("no link of allocnet is left in %s for %s", l.Dir, strings.Join(l.Names, ", "))
	}
	err = a.printPlugins(l, links, err, summary)
	if !a.flags.json {
		removed, restored := 0, 0
		for _, link := range links {
			if link.Unlinked {
				removed++
			}
			if link.State == pluginfiles.Restored {
				restored++
			}
		}
		a.out.Printf("\nremoved %s, restored %s\n", term.Plural(removed, "link"), term.Plural(restored, "file"))
	}
	return err
}

// printPlugins prints the changes, also after an error; the summary only without one.
func (a *app) printPlugins(l *pluginfiles.Links, links []pluginfiles.Link, err error, summary string) error {
	if a.flags.json {
		return errors.Join(err, a.out.JSON(pluginsReport{l.Dir, l.Program, orEmpty(links)}))
	}
	if err == nil {
		a.out.Printf("%s %s\n\n", a.out.Paint(term.Green, a.out.Mark()), summary)
	}
	rows := make([][]term.Cell, len(links))
	for i, link := range links {
		rows[i] = term.Cells(link.Name, string(link.State), link.Aside)
		rows[i][0].Style, rows[i][1].Style = term.Bold, linkStyle(link.State)
	}
	a.out.Table([]string{"PLUGIN", "STATE", "REPLACED"}, rows)
	return err
}

func linkStyle(s pluginfiles.State) term.Style {
	switch s {
	case pluginfiles.Installed, pluginfiles.Restored:
		return term.Green
	case pluginfiles.Foreign, pluginfiles.Outdated:
		return term.Yellow
	}
	return term.Plain
}

// newPluginLinks reads the command line. An empty program stands for the program beside
// this one, no names for all plugins.
func newPluginLinks(dir, program string, names []string) (*pluginfiles.Links, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, stepError{usagef("plugin directory %q does not exist", dir), "name the runtime's plugin directory; if this is the right one: mkdir -p " + dir}
	case err != nil:
		return nil, fmt.Errorf("plugin directory: %w", err)
	case !info.IsDir():
		return nil, usagef("plugin directory %q is not a directory", dir)
	}
	if program == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		program = beside(self)
	}
	if program, err = filepath.Abs(program); err != nil {
		return nil, err
	}
	if len(names) == 0 {
		names = pluginNames()
	}
	return &pluginfiles.Links{Dir: dir, Program: program, Names: names}, nil
}

// beside returns the path of the program of the plugins if it was installed with this
// program, which may have been called through a link.
func beside(self string) string {
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	return filepath.Join(filepath.Dir(self), pluginfiles.ProgramName)
}
