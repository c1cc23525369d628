// Package testbed is what the integration tests share: the host of one test with
// a configurator and an external machine ([Host]), networks ([Chain]), servers and
// clients ([Serve], [RequireAnswer]), processes that are killed while they work
// ([Host.KillLoop]), and allocations from pools ([Contract]).
package testbed
