// Package telemetry observes a configurator's operations. It provides metrics for
// Prometheus, events for subscribers of the API, and spans for OpenTelemetry.
//
// A Telemetry is fed by the hooks of a configurator.Config. An operation costs some
// microseconds: metrics are counters and histograms in a private registry, an event is
// encoded as JSON only when a subscriber reads it, and spans are created only if an
// endpoint is configured.
//
// The number of label values is bounded: operations, steps, engines and outcomes are
// few, and only the first hundred networks get a label of their own. Events and spans
// name the allocation; metrics never do.
//
// Live allocations and leases are counted on the host during a scrape, at most once
// every few seconds. The counts therefore include changes by other processes.
package telemetry
