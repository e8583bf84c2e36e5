package tracestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/tracing"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// failingStore is a store whose reads fail.
type failingStore struct {
	store.Store
	err error
}

func (f failingStore) Read(context.Context, *store.Read) (*store.Snapshot, error) { return nil, f.err }

// TestSpans checks the spans of operations of a store, and which errors are its failures.
func TestSpans(t *testing.T) {
	got := map[string]int{} // spans by name and type of error
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		batch := new(collectorv1.ExportTraceServiceRequest)
		if err == nil {
			err = proto.Unmarshal(body, batch)
		}
		if err != nil {
			t.Errorf("request to the collector: %v", err)
		}
		for _, span := range batch.GetResourceSpans()[0].GetScopeSpans()[0].GetSpans() {
			name := span.GetName()
			for _, a := range span.GetAttributes() {
				if a.GetKey() == "error.type" {
					name += " " + a.GetValue().GetStringValue()
				}
			}
			got[name]++
		}
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	tracer, err := tracing.Open(t.Context(), []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL}, "v0",
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	memory := memstore.New(store.Options{})
	defer memory.Close()
	faults := []error{
		store.ErrNotFound, context.Canceled, store.ErrCorrupt, store.ErrFailed, store.ErrNoSpace, store.ErrOverloaded,
	}
	handler := tracer.HTTP(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		s := New(memory)
		_, created := s.Create(r.Context(), &store.Create{Tenant: "a", Conversation: &parleyv1.Conversation{Id: "c"}})
		_, appended := s.Append(r.Context(), &store.Append{Tenant: "a", ConversationID: "c"})
		_, updated := s.Update(r.Context(), &store.Update{Tenant: "a", ConversationID: "c"})
		_, listed := s.List(r.Context(), &store.List{Tenant: "a", PageSize: 1})
		_, read := s.Read(r.Context(), &store.Read{Tenant: "a", ConversationID: "c"})
		deleted := s.Delete(r.Context(), &store.Delete{Tenant: "a", ConversationID: "c"})
		if err := errors.Join(created, appended, updated, listed, read, deleted); err != nil {
			t.Error(err)
		}
		for _, fault := range faults {
			_, err := New(failingStore{memory, fmt.Errorf("read: %w", fault)}).Read(r.Context(), &store.Read{})
			if !errors.Is(err, fault) {
				t.Errorf("Read() = %v, want %v", err, fault)
			}
		}
	}))
	handler.ServeHTTP(httptest.NewRecorder(),
		httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
	if _, err := tracer.Close(t.Context()); err != nil {
		t.Errorf("Close() = %v", err)
	}
	want := map[string]int{
		"GET": 1, "store create": 1, "store append": 1, "store update": 1, "store list": 1, "store delete": 1,
		"store read": 3, "store read corrupt": 1, "store read failed": 1, "store read no_space": 1,
		"store read overloaded": 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
}
