package main

import (
	"encoding/json"
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/internal/buildinfo"
)

// build describes the version of this program and the Go version that built it.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
}

// newBuild returns the build of a program. The info is nil for a program that was built
// without modules.
func newBuild(info *debug.BuildInfo) build {
	if info == nil {
		return build{Version: "unknown", Go: "unknown"}
	}
	b := build{Version: info.Main.Version, Go: info.GoVersion}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.Revision = s.Value + b.Revision
		case s.Key == "vcs.modified" && s.Value == "true":
			b.Revision += "+changes"
		}
	}
	return b
}

// String implements fmt.Stringer.
func (b build) String() string {
	return fmt.Sprintf("allocnetd %s %s %s", b.Version, b.Revision, b.Go)
}

func (a *app) newVersion() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			b := newBuild(buildinfo.Read())
			if asJSON {
				return json.NewEncoder(a.out).Encode(b)
			}
			_, err := fmt.Fprintln(a.out, b)
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
