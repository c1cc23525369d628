package thin

import (
	"io"
	"strconv"
	"unicode/utf8"
)

// Environ are the values of the Variables, in their order. The error, an *Error, is
// that JSON cannot carry one, or that there is no command.
func Environ(getenv func(string) string) ([]string, error) {
	var values []string
	for _, name := range Variables {
		value := getenv(name)
		if !utf8.ValidString(value) {
			return nil, &Error{Code: CodeInvalidEnvironment, Msg: name + " is not UTF-8"}
		}
		values = append(values, value)
	}
	if values[0] == "" {
		return nil, &Error{
			Code: CodeInvalidEnvironment, Msg: "CNI_COMMAND is not set",
			Details: "this program is a CNI plugin: a container runtime calls it, with its command in the environment and a configuration on stdin",
		}
	}
	return values, nil
}

// ReadConfig reads a configuration from stdin. The error is an *Error.
func ReadConfig(stdin io.Reader) ([]byte, error) {
	config, err := io.ReadAll(io.LimitReader(stdin, MaxConfig+1))
	if err != nil {
		return nil, &Error{Code: CodeIOFailure, Msg: "read the network configuration from stdin", Details: err.Error()}
	}
	if len(config) > MaxConfig {
		return nil, &Error{Code: CodeInvalidConfig, Msg: "network configuration is longer than " + strconv.Itoa(MaxConfig) + " bytes"}
	}
	return config, nil
}
