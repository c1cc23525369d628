package api

import "net/http"

// nobody is a handler that is not called.
type nobody struct{}

func (nobody) ServeHTTP(http.ResponseWriter, *http.Request) {}
