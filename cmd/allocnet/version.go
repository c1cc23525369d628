package main

import (
	"runtime/debug"
	"strings"

	"github.com/containernetworking/cni/pkg/version"
	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/internal/buildinfo"
)

// versionInfo describes the version of this program and the Go version that built it.
type versionInfo struct {
	Version     string   `json:"version"`
	Commit      string   `json:"commit,omitempty"`
	Date        string   `json:"date,omitempty"`
	Go          string   `json:"go"`
	GoCNI       string   `json:"goCNI"`
	LibCNI      string   `json:"libcni"`
	CNIVersions []string `json:"cniVersions"`
}

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "version",
		Short:             "Print the versions of this program and of its libraries",
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			return a.printVersion(newVersionInfo(buildinfo.Read()))
		},
	}
}

// addVersionFlag gives the root command a flag that most programs have.
func (a *app) addVersionFlag(root *cobra.Command) {
	wanted := root.Flags().Bool("version", false, "print the version of this program")
	root.RunE = a.running(func(c *cobra.Command, _ []string) error {
		if !*wanted {
			return c.Help()
		}
		v := newVersionInfo(buildinfo.Read())
		if a.flags.json {
			return a.out.JSON(v)
		}
		a.out.Table(nil, properties("allocnet", v.Version))
		return nil
	})
}

// newVersionInfo returns the version of a program. The info is nil for a program that was
// built without modules.
func newVersionInfo(b *debug.BuildInfo) versionInfo {
	v := versionInfo{Version: "unknown", Go: "unknown", GoCNI: "unknown", LibCNI: "unknown", CNIVersions: version.All.SupportedVersions()}
	if b == nil {
		return v
	}
	v.Version, v.Go = b.Main.Version, b.GoVersion
	for _, s := range b.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value + v.Commit
		case "vcs.time":
			v.Date = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				v.Commit += "+changes"
			}
		}
	}
	for _, m := range b.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		switch m.Path {
		case "github.com/containerd/go-cni":
			v.GoCNI = m.Version
		case "github.com/containernetworking/cni":
			v.LibCNI = m.Version
		}
	}
	return v
}

func (a *app) printVersion(v versionInfo) error {
	if a.flags.json {
		return a.out.JSON(v)
	}
	a.out.Table(nil, properties(
		"allocnet", v.Version, "commit", v.Commit, "date", v.Date, "go", v.Go,
		"go-cni", v.GoCNI, "libcni", v.LibCNI, "CNI", strings.Join(v.CNIVersions, ", "),
	))
	return nil
}
