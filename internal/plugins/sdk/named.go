package sdk

import "fmt"

// pluginError is the error of a native plugin, with the plugin's type. Errors of plugins do
// not name the plugin themselves.
type pluginError struct {
	plugin string
	err    error
}

// named returns the error of a plugin, which names the plugin then; nil for nil.
func named(plugin string, err error) error {
	if err == nil {
		return nil
	}
	return &pluginError{plugin, err}
}

// unnamed returns the error that named had for a plugin. Errors of other plugins, such as its
// IPAM plugin, keep their names.
func unnamed(plugin string, err error) error {
	// Not errors.As: an error further in may be that of another call of the plugin.
	if own, ok := err.(*pluginError); ok && own.plugin == plugin {
		return own.err
	}
	return err
}

// Error implements error.
func (e *pluginError) Error() string { return fmt.Sprintf("plugin %q: %v", e.plugin, e.err) }

// Unwrap returns the plugin's error.
func (e *pluginError) Unwrap() error { return e.err }
