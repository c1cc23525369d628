package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/cmd/internal/server/settings"
)

// validation is the JSON output of validate.
type validation struct {
	File string `json:"file"`
	// Exists is false if there is no file at the default path. Then all settings without a variable
	// or a flag have their defaults.
	Exists bool              `json:"exists"`
	Valid  bool              `json:"valid"`
	Errors []*settings.Error `json:"errors"`
	// Settings are all settings that would be active, by key, in the syntax of the file.
	Settings map[string]string `json:"settings,omitempty"`
}

func (a *app) newValidate() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "validate [FILE]",
		Short: "Check the settings and change nothing",
		Long: `Check the settings and change nothing. They come from FILE, or from the file that
--config names, together with the environment and the flags. Every error is printed
with its line, its key and a correction.`,
		Example: `  allocnetd validate
  allocnetd validate new.hcl && mv new.hcl ` + settings.DefaultFile + ` && systemctl reload allocnetd
  allocnetd validate --json | jq -r '.settings | to_entries[] | "\(.key) = \(.value)"'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				a.config = args[0]
			}
			return a.validate(asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) validate(asJSON bool) error {
	source := a.source()
	loaded, err := loadSettings(source)
	_, statErr := os.Stat(source.Path())
	v := validation{File: source.Path(), Exists: !errors.Is(statErr, fs.ErrNotExist), Valid: err == nil, Errors: settings.Errors(err)}
	if v.Valid {
		v.Errors, v.Settings = []*settings.Error{}, loaded.Values()
	}
	if asJSON {
		return a.printValidation(v)
	}
	if err != nil {
		return usageError{err}
	}
	text := ": valid"
	if !v.Exists {
		text = ": there is no such file; the defaults, with the environment and the flags, are valid"
	}
	_, err = fmt.Fprintln(a.out, v.File+text)
	return err
}

func (a *app) printValidation(v validation) error {
	e := json.NewEncoder(a.out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if !v.Valid {
		return errReported
	}
	return nil
}
