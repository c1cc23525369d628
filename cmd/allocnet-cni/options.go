package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/cni"
)

// options are the keys of the configuration that the plugin itself reads.
type options struct {
	version  string
	socket   string
	settings string
	idle     time.Duration
}

const (
	// maxSocket is the longest path that a socket address holds.
	maxSocket = 107
	// defaultIdle is the default of the idle timeout, and minIdle its minimum.
	defaultIdle = 5 * time.Second
	minIdle     = 2 * cni.Keepalive
)

// readOptions reads a configuration. With an error it returns at least the version.
func readOptions(config []byte) (*options, error) {
	o := &options{socket: client.DefaultSocket, idle: defaultIdle}
	m, ok := membersOf(config)
	if !ok {
		return o, &cni.Error{Code: cni.CodeDecodingFailure, Msg: "network configuration cannot be read", Details: "it is not one JSON object"}
	}
	o.version, _ = m.text("cniVersion") // the service reports values that are no strings
	o.settings, _ = m.text("settings")
	if _, given := m.values["socket"]; given {
		if o.socket, ok = m.text("socket"); !ok || !filepath.IsAbs(o.socket) || len(o.socket) > maxSocket {
			return o, invalid("socket", fmt.Sprintf("must be an absolute path of at most %d bytes", maxSocket))
		}
	}
	for _, key := range []string{"patience", "idleTimeout"} { // patience is the former name
		if _, given := m.values[key]; !given {
			continue
		}
		var err error
		text, _ := m.text(key)
		if o.idle, err = time.ParseDuration(text); err != nil || o.idle < minIdle {
			return o, invalid(key, fmt.Sprintf(`must be a time such as "5s", at least "%s"`, minIdle))
		}
	}
	return o, nil
}

func invalid(key, reason string) error {
	return &cni.Error{Code: cni.CodeInvalidConfig, Msg: fmt.Sprintf("network configuration: %q %s", key, reason)}
}

// members are the members of a JSON object by their exact keys, which encoding/json
// would match in any case. The last value of a repeated key counts.
type members struct {
	values   map[string]json.RawMessage
	repeated bool // a key occurs more than once
}

// membersOf returns the members of a JSON object; ok is false if data is anything else.
func membersOf(data []byte) (m members, ok bool) {
	if !json.Valid(data) {
		return m, false
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if token, err := d.Token(); err != nil || token != json.Delim('{') {
		return m, false
	}
	m.values = map[string]json.RawMessage{}
	for d.More() {
		token, err := d.Token()
		key, isText := token.(string)
		var value json.RawMessage
		if err != nil || !isText || d.Decode(&value) != nil {
			return m, false
		}
		if _, known := m.values[key]; known {
			m.repeated = true
		}
		m.values[key] = value
	}
	return m, true
}

// text returns the value of a key; ok is false if it is missing or not a string.
func (m *members) text(key string) (text string, ok bool) {
	var value *string
	if json.Unmarshal(m.values[key], &value) != nil || value == nil {
		return "", false
	}
	return *value, true
}
