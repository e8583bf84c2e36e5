// Package openapi holds the OpenAPI document of the HTTP door. protoc-gen-openapi makes it
// from the protos and their http.yaml.
package openapi

import (
	_ "embed"
	"net/http"
	"strconv"
)

//go:embed gen/openapi.json
var document []byte

// Serve answers with the document: OpenAPI 3.1 as JSON. It looks at nothing in the request.
func Serve(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(document)))
	_, _ = w.Write(document)
}
