package cni

import (
	"encoding/json"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/engine"
)

// resultOf returns the result of all networks of an attachment in a version of CNI.
func resultOf(status *configurator.Status, version string) (json.RawMessage, error) {
	if len(status.Results) == 0 {
		return nil, errors.New("no network returned a result")
	}
	// Results have the form of 1.0.0 whatever version they name. Earlier versions have
	// another form.
	if len(status.Results) == 1 && versionOf(status.Results[0]) == version && AtLeast(version, "1.0.0") {
		return status.Results[0], nil
	}
	merged := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	for i, text := range status.Results {
		result, err := engine.ParseResult(text)
		if err != nil {
			return nil, fmt.Errorf("result %d of %d: %w", i+1, len(status.Results), err)
		}
		merge(merged, result)
	}
	converted, err := merged.GetAsVersion(version)
	if err != nil {
		return nil, fmt.Errorf("results in version %s: %w", version, err)
	}
	return json.Marshal(converted)
}

// merge appends the result of a further network. The resolvers come from the first network
// that has any.
func merge(to, from *types100.Result) {
	offset := len(to.Interfaces)
	to.Interfaces = append(to.Interfaces, from.Interfaces...)
	for _, ip := range from.IPs {
		if ip.Interface != nil {
			ip.Interface = types100.Int(*ip.Interface + offset)
		}
		to.IPs = append(to.IPs, ip)
	}
	to.Routes = append(to.Routes, from.Routes...)
	if len(to.DNS.Nameservers) == 0 {
		to.DNS = from.DNS
	}
}
