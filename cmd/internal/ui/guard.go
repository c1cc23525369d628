package ui

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	_ "embed"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
)

//go:embed page/index.html
var index string

// inlineHash returns the hash of the script within the document, as the policy names it.
func inlineHash() string {
	_, rest, _ := strings.Cut(index, "<script>")
	script, _, _ := strings.Cut(rest, "</script>")
	sum := sha256.Sum256([]byte(script))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// headers are those of every response. The policy permits only the files of the page, the
// script within its document, and no text that becomes markup or a script.
var headers = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self' " + inlineHash() + "; style-src 'self'; connect-src 'self'; img-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
	"Referrer-Policy":              "no-referrer",
	"Cache-Control":                "no-store",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Cross-Origin-Opener-Policy":   "same-origin",
}

// guard serves a request only if it is for one of the hosts and reads.
func guard(hosts []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range headers {
			w.Header().Set(name, value)
		}
		switch {
		case !slices.Contains(hosts, r.Host):
			fail(w, http.StatusMisdirectedRequest, "this page is served as http://"+hosts[0]+"/ only; forward the same port if you reach it through a tunnel")
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			fail(w, http.StatusMethodNotAllowed, "the page only reads")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// authorized serves a request only if it has the token.
func authorized(token string, next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		got := sha256.Sum256([]byte(given))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			fail(w, http.StatusUnauthorized, "the token is missing or wrong: open the URL with the token that the program has printed")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// newToken returns 128 random bits or more as a text for URLs.
func newToken() string { return rand.Text() }
