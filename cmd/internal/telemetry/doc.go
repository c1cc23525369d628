// Package telemetry observes a configurator's operations. It provides metrics for
// Prometheus, events for subscribers of the API, and spans for OpenTelemetry.
//
// A Telemetry is fed by the hooks of a configurator.Config. An operation costs it
// some microseconds: metrics are counters and histograms of its own registry, an
// event is kept as it is and only turned into JSON for who reads it, and spans are
// made only where an endpoint is configured.
//
// What a label may be is bounded: operations, steps, engines and outcomes are few,
// of networks the first hundred names have one of their own. Allocations are named
// in events and spans, never in a metric.
//
// Live allocations and leases are counted on the host when they are asked for, at
// most once in a few seconds: so they are true whoever changed them.
package telemetry
