package main

import (
	"strconv"
	"strings"
	"time"

	"github.com/allocnet/allocnet/internal/cniwire/thin"
)

// options are what the plugin itself takes from its configuration.
type options struct {
	version  string
	socket   string
	patience time.Duration
}

// maxSocket is what the kernel has room for.
const maxSocket = 107

// readOptions reads a configuration. The version is known also with an error.
func readOptions(config []byte) (options, error) {
	o := options{socket: thin.DefaultSocket, patience: thin.DefaultPatience}
	var errs []error
	object := thin.Members(config, func(key string, value []byte) {
		text, ok := thin.Text(value)
		switch key {
		case "cniVersion":
			o.version = text
		case "socket":
			if o.socket = text; !ok || !strings.HasPrefix(text, "/") || len(text) > maxSocket {
				errs = append(errs, invalid(key, "must be an absolute path of at most "+strconv.Itoa(maxSocket)+" bytes"))
			}
		case "patience":
			var err error
			if o.patience, err = time.ParseDuration(text); err != nil || o.patience < thin.LeastPatience {
				errs = append(errs, invalid(key, `must be a time such as "5s", at least "`+thin.LeastPatience.String()+`"`))
			}
		}
	})
	switch {
	case !object:
		return o, &thin.Error{Code: thin.CodeDecodingFailure, Msg: "network configuration cannot be read", Details: "it is not one JSON object"}
	case len(errs) > 0:
		return o, errs[0]
	}
	return o, nil
}

func invalid(key, reason string) error {
	return &thin.Error{Code: thin.CodeInvalidConfig, Msg: "network configuration: " + strconv.Quote(key) + " " + reason}
}
