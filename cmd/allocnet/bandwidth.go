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

// bandwidthText writes limits as parseBandwidth reads them; "" for none.
func bandwidthText(b *configurator.Bandwidth) string {
	if b == nil {
		return ""
	}
	var parts []string
	add := func(direction string, rate, burst uint64) {
		if rate > 0 {
			parts = append(parts, direction+"="+bitsText(rate)+":"+bitsText(burst))
		}
	}
	add("ingress", b.IngressRate, b.IngressBurst)
	add("egress", b.EgressRate, b.EgressBurst)
	return strings.Join(parts, ",")
}

// bitsText writes a number of bits with the largest unit of which it is a multiple.
func bitsText(n uint64) string {
	unit := ""
	for _, next := range []string{"k", "M", "G"} {
		if n == 0 || n%1000 != 0 {
			break
		}
		n, unit = n/1000, next
	}
	return strconv.FormatUint(n, 10) + unit
}
