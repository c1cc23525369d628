package cni

import (
	"fmt"
	"io"
)

// ReadConfig reads a configuration from stdin. The error is an *Error.
func ReadConfig(stdin io.Reader) ([]byte, error) {
	config, err := io.ReadAll(io.LimitReader(stdin, MaxConfig+1))
	if err != nil {
		return nil, &Error{Code: CodeIOFailure, Msg: "read the network configuration from stdin", Details: err.Error()}
	}
	if len(config) > MaxConfig {
		return nil, &Error{Code: CodeInvalidConfig, Msg: fmt.Sprintf("network configuration is longer than %d bytes", MaxConfig)}
	}
	return config, nil
}
