package main

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
)

func newNetworks(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "networks",
		Short: "List the networks (attach and detach change those of an allocation)",
		Long: `List the networks that setup can use: those of --conf-dir, and the embedded one.
Skipped files are listed on stderr with the reason.

Configurations whose plugin is allocnet itself, such as that of the daemon's manager,
are not listed: they delegate to listed networks.`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(c *cobra.Command, _ []string) error { return a.networks(c.Context()) },
	}
}

type skippedFile struct {
	File  string `json:"file"`
	Error string `json:"error"`
}

// networks prints the active networks and warns of skipped files.
func (a *app) networks(ctx context.Context) error {
	conf, err := a.service()
	if err != nil {
		return err
	}
	networks, broken := conf.Networks(ctx)
	if err := a.unasked(broken); err != nil {
		return err
	}
	for i := range networks {
		networks[i].Plugins = orEmpty(networks[i].Plugins)
		networks[i].Capabilities = orEmpty(networks[i].Capabilities)
	}
	if a.flags.json {
		skipped := []skippedFile{}
		for _, b := range broken {
			skipped = append(skipped, skippedFile{b.File, b.Err.Error()})
		}
		return a.out.JSON(map[string]any{"networks": networks, "skipped": skipped})
	}
	a.printNetworks(networks)
	a.warnOfBinaries(networks)
	for _, n := range networks {
		if n.Invalid != "" {
			a.warn("every setup fails: %s", n.Invalid)
		}
	}
	a.warnSkipped(broken)
	return nil
}

func (a *app) printNetworks(networks []configurator.Network) {
	rows := make([][]term.Cell, len(networks))
	for i, n := range networks {
		rows[i] = networkRow(n)
	}
	a.out.Table([]string{"NAME", "DEFAULT", "ENGINE", "CNI", "PLUGINS", "CAPABILITIES", "FILE"}, rows)
}

// unasked returns the error if the daemon did not list its networks: then it is the
// only error, with the path of the socket as its file. Otherwise unasked returns nil.
func (a *app) unasked(broken []*configurator.NetworkError) error {
	if len(broken) == 1 && broken[0].File == a.flags.socket {
		return broken[0].Err
	}
	return nil
}

func (a *app) warnSkipped(broken []*configurator.NetworkError) {
	for _, b := range broken {
		if b.File == a.flags.confDir && errors.Is(b.Err, fs.ErrNotExist) {
			a.warn("%s does not exist: only the embedded network exists", b.File)
			continue
		}
		a.warn("skipped %s: %v", b.File, b.Err)
	}
}

// warnOfBinaries warns of networks whose native plugins run as binaries, with the reason.
func (a *app) warnOfBinaries(networks []configurator.Network) {
	for _, n := range networks {
		if n.Reason != "" {
			a.warn("network %s: plugins run as binaries: %s", n.Name, n.Reason)
		}
	}
}

func networkRow(n configurator.Network) []term.Cell {
	isDefault, file := "", n.File
	if n.Default {
		isDefault = "yes"
	}
	if file == "" {
		file = "(embedded)"
	}
	row := term.Cells(n.Name, isDefault, string(n.Engine), n.CNIVersion, strings.Join(n.Plugins, " "), strings.Join(n.Capabilities, " "), file)
	row[0].Style, row[1].Style = term.Bold, term.Green
	return row
}
