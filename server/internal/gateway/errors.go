package gateway

import (
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
)

// writeStatus answers with a status as JSON, in the form of google.rpc.Status.
func writeStatus(w http.ResponseWriter, st *status.Status) {
	body, err := protojson.Marshal(st.Proto())
	if err != nil {
		body = []byte(`{"code": 13, "message": "internal error"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(runtime.HTTPStatusFromCode(st.Code()))
	_, _ = w.Write(append(body, '\n'))
}
