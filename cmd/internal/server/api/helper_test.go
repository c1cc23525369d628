package api

import "net/http"

// unused is a handler that is not called.
type unused struct{}

func (unused) ServeHTTP(http.ResponseWriter, *http.Request) {}
