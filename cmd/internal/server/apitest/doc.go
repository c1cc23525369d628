// Package apitest is shared by the tests of the API and of its client. It has a service in
// memory, the contract of services, and a server on a Unix socket that compares every
// request and response with the OpenAPI description.
package apitest
