// Package readiness checks the readiness file: a file that the provider of a network, such
// as flanneld, creates when the network can be used.
package readiness

import (
	"fmt"
	"os"
)

// CheckFile returns an error while the readiness file is missing. The path is "" if the
// settings name none; then CheckFile returns nil.
func CheckFile(path string) error {
	if path == "" {
		return nil
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("readiness file: %w: the provider of the network has to create it", err)
	}
	return nil
}
