package client

import (
	"strings"

	"google.golang.org/grpc"
	_ "google.golang.org/grpc/health" // Enables the health checks of roundRobin.
)

// roundRobin begins the service config of WithRoundRobin. The health checks watch the state of the server, not of one
// service: a server that stops is not serving, although it still executes most calls and refuses the others.
const roundRobin = `{"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": ""},`

// WithRoundRobin returns an option of [Dial] that distributes the calls over all addresses of the target, for several
// servers on one store: "dns:///HOST:PORT" with a name that has the addresses of all servers. A call that is retried
// goes to another server. New calls do not go to a server whose health is NOT_SERVING, which a server reports from the
// beginning of its stop. Without the option all calls go to the first address that accepts a connection.
//
// The option keeps the retries of this package. [grpc.WithDefaultServiceConfig] with the same policy replaces them.
func WithRoundRobin() grpc.DialOption {
	return grpc.WithDefaultServiceConfig(strings.Replace(serviceConfig, "{", roundRobin, 1))
}
