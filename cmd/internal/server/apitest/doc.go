// Package apitest is what the tests of the API and of its client have in common: a
// service in memory, the contract that it and the configurator keep, and a server on
// a unix socket of which every request and every response is held against the
// OpenAPI description.
package apitest
