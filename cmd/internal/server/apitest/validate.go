package apitest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/internal/wire"
)

func init() {
	openapi3filter.RegisterBodyDecoder("text/event-stream", openapi3filter.PlainBodyDecoder)
}

// Validator compares the requests and responses of a handler with a description.
type Validator struct {
	Next   http.Handler
	Router routers.Router
	// Report is called with each difference.
	Report func(error)
}

// newRouter returns the router of a description.
func newRouter(description []byte) (routers.Router, error) {
	loader := openapi3.NewLoader()
	doc, err := loader.LoadFromData(description)
	if err == nil {
		err = doc.Validate(loader.Context)
	}
	if err != nil {
		return nil, err
	}
	return gorillamux.NewRouter(doc)
}

// ServeHTTP implements http.Handler.
func (v *Validator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var sent bytes.Buffer
	copied := r.Clone(r.Context()) // the server uses its own request afterwards
	copied.Body = struct {
		io.Reader
		io.Closer
	}{io.TeeReader(r.Body, &sent), r.Body}
	got := &recorder{ResponseWriter: w, status: http.StatusOK}
	v.Next.ServeHTTP(got, copied)
	copied.Body = io.NopCloser(&sent)
	if err := v.judge(copied, got); err != nil {
		v.Report(fmt.Errorf("%s %s: %w", r.Method, r.URL, err))
	}
}

// judge compares one request and its response with the description.
func (v *Validator) judge(r *http.Request, got *recorder) error {
	route, params, err := v.Router.FindRoute(r)
	if err != nil {
		return notServed(got, err)
	}
	if r.ContentLength != 0 { // it is ignored
		r.Header.Set("Content-Type", "application/json")
	}
	input := &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route}
	if got.status < http.StatusBadRequest && !undecoded(r, got) {
		if err := openapi3filter.ValidateRequest(r.Context(), input); err != nil {
			return fmt.Errorf("accepted: %w", err)
		}
	}
	response := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: got.status, Header: got.Header(),
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	}
	if r.Context().Err() != nil { // the client disconnected before the end of the answer
		return nil
	}
	response.SetBodyBytes(got.body.Bytes())
	if err := openapi3filter.ValidateResponse(r.Context(), response); err != nil {
		return fmt.Errorf("answered %d: %w", got.status, err)
	}
	return nil
}

// undecoded reports whether a request of the plugin was refused as malformed, although its
// status is 200.
func undecoded(r *http.Request, got *recorder) bool {
	var response cni.Response
	return r.URL.Path == cni.Path && json.Unmarshal(got.body.Bytes(), &response) == nil &&
		response.Error != nil && (response.Error.Code == cni.CodeDecodingFailure || response.Error.Code == cni.CodeIOFailure)
}

// notServed checks that a path that is not described gets an error.
func notServed(got *recorder, cause error) error {
	var failure wire.Failure
	if got.status < http.StatusBadRequest {
		return fmt.Errorf("answered %d: %w", got.status, cause)
	}
	if got.status != http.StatusNoContent && !strings.HasPrefix(got.Header().Get("Content-Type"), "application/json") {
		return errors.New("answered with something that is not JSON")
	}
	if err := json.Unmarshal(got.body.Bytes(), &failure); err != nil || failure.Error == nil {
		return fmt.Errorf("answered %q: %w", got.body.String(), cause)
	}
	return nil
}

// recorder stores the answer.
type recorder struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

// Unwrap returns the underlying writer, for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	if status >= http.StatusOK { // others come before the answer
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(p []byte) (int, error) {
	r.body.Write(p)
	return r.ResponseWriter.Write(p)
}
