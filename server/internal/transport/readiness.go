package transport

import (
	"sync"

	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// readiness is what /readyz and the health service of gRPC report.
type readiness struct {
	health *health.Server

	mu       sync.Mutex
	services []string // nil before serve
	why      string   // why the server itself is not ready: it starts or stops; empty if it serves
	outage   string   // why it cannot serve for a while; empty if it can
}

func newReadiness(h *health.Server) *readiness { return &readiness{health: h, why: "starting"} }

// serve makes the server ready, with services of these names.
func (r *readiness) serve(services []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.services, r.why = services, ""
	r.report()
}

// stop makes the server not ready for good.
func (r *readiness) stop(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.why = why
	r.health.Shutdown() // It ignores later states.
}

// setOutage begins an outage, or ends it if why is empty.
func (r *readiness) setOutage(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outage = why
	r.report()
}

// report sets the state of all services. The caller holds mu.
func (r *readiness) report() {
	state := healthv1.HealthCheckResponse_SERVING
	if r.outage != "" {
		state = healthv1.HealthCheckResponse_NOT_SERVING
	}
	for _, service := range r.services {
		r.health.SetServingStatus(service, state)
	}
}

// notReady returns why the server is not ready; empty if it is.
func (r *readiness) notReady() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.why != "" {
		return r.why
	}
	return r.outage
}
