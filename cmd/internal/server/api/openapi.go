package api

import (
	_ "embed"
	"net/http"
	"slices"
)

//go:embed openapi.json
var description []byte

// Description returns the OpenAPI description of the API.
func Description() []byte { return slices.Clone(description) }

func (a *API) openAPI(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, err := w.Write(description)
	a.unsent(r, err)
}
