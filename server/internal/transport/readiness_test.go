package transport

import (
	"testing"

	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// TestReadiness checks what probes report after each step. A stop is for good, and an outage before the server serves
// counts when it serves.
func TestReadiness(t *testing.T) {
	t.Parallel()
	const serving, notServing = healthv1.HealthCheckResponse_SERVING, healthv1.HealthCheckResponse_NOT_SERVING
	states := health.NewServer()
	r := newReadiness(states)
	if got := r.notReady(); got != "starting" {
		t.Errorf("notReady() = %q, want starting", got)
	}
	for _, step := range []struct {
		name string
		do   func()
		why  string
		want healthv1.HealthCheckResponse_ServingStatus
	}{
		{"outage, serve", func() { r.setOutage("early"); r.serve([]string{"", "service"}) }, "early", notServing},
		{"end of the outage", func() { r.setOutage("") }, "", serving},
		{"outage", func() { r.setOutage("store unavailable") }, "store unavailable", notServing},
		{"end of the second outage", func() { r.setOutage("") }, "", serving},
		{"stop", func() { r.stop("stopping") }, "stopping", notServing},
		{"outage after the stop", func() { r.setOutage("late") }, "stopping", notServing},
		{"end of this outage", func() { r.setOutage("") }, "stopping", notServing},
	} {
		step.do()
		if got := r.notReady(); got != step.why {
			t.Errorf("%s: notReady() = %q, want %q", step.name, got, step.why)
		}
		for _, service := range []string{"", "service"} {
			reply, err := states.Check(t.Context(), &healthv1.HealthCheckRequest{Service: service})
			if err != nil || reply.GetStatus() != step.want {
				t.Errorf("%s: Check(%q) = %v, %v, want %v", step.name, service, reply.GetStatus(), err, step.want)
			}
		}
	}
}
