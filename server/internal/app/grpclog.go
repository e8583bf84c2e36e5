package app

import (
	"io"
	"strconv"
	"strings"

	"google.golang.org/grpc/grpclog"
)

// newGRPCLog returns the logger of grpc-go, which writes text. GRPC_GO_LOG_SEVERITY_LEVEL turns it
// on, and GRPC_GO_LOG_VERBOSITY_LEVEL applies. GRPC_GO_LOG_FORMATTER does not apply, because grpclog
// exports no JSON logger for another writer.
//
// The logger is off by default. Calls return the errors of gRPC anyway. Its log has neither the
// levels nor the format of the server's log, and it logs an error for each agent without a health
// service.
func newGRPCLog(getenv func(string) string, w io.Writer) grpclog.LoggerV2 {
	infos, warnings, errs := io.Discard, io.Discard, io.Discard
	switch strings.ToLower(getenv("GRPC_GO_LOG_SEVERITY_LEVEL")) {
	case "info":
		infos = w
	case "warning":
		warnings = w
	case "error":
		errs = w
	}
	verbosity, _ := strconv.Atoi(getenv("GRPC_GO_LOG_VERBOSITY_LEVEL")) // 0 if it is not a number, as in grpc-go
	return grpclog.NewLoggerV2WithVerbosity(infos, warnings, errs, verbosity)
}
