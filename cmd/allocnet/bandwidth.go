package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/allocnet/allocnet/configurator"
)

// maxBurst is the largest burst that the kernel's token bucket can count.
const maxBurst = math.MaxInt32

// parseBandwidth reads ingress=RATE[:BURST],egress=RATE[:BURST]. Rates are in
// bits per second, bursts in bits, each with k, M or G for powers of 1000. A
// burst that is omitted is the amount of one second.
func parseBandwidth(s string) (*configurator.Bandwidth, error) {
	var b configurator.Bandwidth
	for _, part := range strings.Split(s, ",") {
		direction, limit, _ := strings.Cut(part, "=")
		rate, burst := &b.IngressRate, &b.IngressBurst
		switch direction {
		case "ingress":
		case "egress":
			rate, burst = &b.EgressRate, &b.EgressBurst
		default:
			return nil, fmt.Errorf("%q: must be ingress=RATE or egress=RATE", part)
		}
		if *rate != 0 {
			return nil, fmt.Errorf("%q: %s is given twice", part, direction)
		}
		var err error
		if *rate, *burst, err = parseLimit(limit); err != nil {
			return nil, fmt.Errorf("%q: %w", part, err)
		}
	}
	return &b, nil
}

func parseLimit(s string) (rate, burst uint64, err error) {
	first, second, found := strings.Cut(s, ":")
	if rate, err = parseBits(first); err != nil {
		return 0, 0, err
	}
	if !found {
		return rate, min(rate, maxBurst), nil
	}
	burst, err = parseBits(second)
	return rate, burst, err
}

// parseBits parses a number of bits, with k, M or G for powers of 1000.
func parseBits(s string) (uint64, error) {
	digits, unit := s, uint64(1)
	for suffix, factor := range map[string]uint64{"k": 1e3, "M": 1e6, "G": 1e9} {
		if rest, found := strings.CutSuffix(s, suffix); found {
			digits, unit = rest, factor
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n == 0 || n > math.MaxUint64/unit {
		return 0, fmt.Errorf("%q: must be a number of bits above 0, like 500k, 100M or 1G", s)
	}
	return n * unit, nil
}
