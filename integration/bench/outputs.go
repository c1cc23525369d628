package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/allocnet/allocnet/internal/bench"
)

// write writes the report to the selected outputs.
func (o *options) write(r *bench.Report, stdout io.Writer) error {
	if err := r.WriteTable(stdout); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return errors.Join(toFile(o.json, r.WriteJSON), toFile(o.svg, r.WriteChart))
}

// toFile writes a file unless its name is empty.
func toFile(name string, write func(io.Writer) error) error {
	if name == "" {
		return nil
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
