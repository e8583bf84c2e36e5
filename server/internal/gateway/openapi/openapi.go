// Package openapi serves the OpenAPI document of the HTTP API. The command protoc-gen-openapi
// generates the document from the protos and http.yaml. Start at [Serve].
package openapi

import (
	_ "embed"
	"net/http"
	"strconv"
)

//go:embed gen/openapi.json
var document []byte

// Serve answers any request with the document: OpenAPI 3.1 as JSON.
func Serve(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(document)))
	_, _ = w.Write(document)
}
