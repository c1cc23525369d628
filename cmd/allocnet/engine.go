package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/configurator"
)

// engines are the values of --engine.
var engines = []struct {
	engine configurator.Engine
	what   string
}{
	{configurator.EngineAuto, "native if the network has a native plugin, otherwise exec"},
	{configurator.EngineExec, "plugin binaries"},
	{configurator.EngineNative, "inside this process; binaries for unknown plugins"},
}

// engineFlag is the value of --engine. Set refuses an unknown engine, so that the error names
// the flag or the variable.
type engineFlag configurator.Engine

func (e *engineFlag) String() string { return string(*e) }
func (e *engineFlag) Type() string   { return "engine" }

func (e *engineFlag) Set(s string) error {
	var names []string
	for _, known := range engines {
		if s == string(known.engine) {
			*e = engineFlag(s)
			return nil
		}
		names = append(names, string(known.engine))
	}
	return fmt.Errorf("must be one of %s", strings.Join(names, ", "))
}

func completeEngines(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var values []cobra.Completion
	for _, known := range engines {
		values = append(values, cobra.CompletionWithDesc(string(known.engine), known.what))
	}
	return values, cobra.ShellCompDirectiveNoFileComp
}
