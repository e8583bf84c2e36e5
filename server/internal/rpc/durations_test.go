package rpc

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestInvalidDurations sends durations whose total the rules allow, but which have no JSON form.
func TestInvalidDurations(t *testing.T) {
	f := open(t, nil)
	f.append(t, "taken", user("hello"))
	written := f.changeCount()
	for name, d := range map[string]*durationpb.Duration{
		"nanos above one second": {Seconds: 5, Nanos: 2e9},
		"different signs":        {Seconds: 5, Nanos: -7},
	} {
		conversation := &parleyv1.Conversation{Id: "taken", Retention: &parleyv1.Retention{Ttl: d}}
		for field, requests := range map[string][]proto.Message{
			"conversation.retention.ttl": {
				&parleyv1.CreateConversationRequest{Conversation: conversation},
				&parleyv1.UpdateConversationRequest{Conversation: conversation},
			},
			"lease_duration": {&parleyv1.SetActiveAgentRequest{ConversationId: "taken", LeaseDuration: d}},
			"wait_timeout":   {&parleyv1.GetRoutingSummaryRequest{ConversationId: "taken", WaitTimeout: d}},
			"inactive_for":   {&parleyv1.PurgeConversationsRequest{InactiveFor: d}},
			"delete_after_disconnect": {
				&parleyv1.WatchConversationsRequest{ConversationIds: []string{"taken"}, DeleteAfterDisconnect: d},
			},
		} {
			for _, request := range requests {
				err := f.conn.Invoke(t.Context(), methodOf(request), request, &parleyv1.DeleteConversationResponse{})
				got := wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
				if diff := cmp.Diff([]string{field}, got.fields); diff != "" {
					t.Errorf("%s, %T: %s (-want +got):\n%s", name, request, got.text, diff)
				}
			}
		}
		within := &parleyv1.ListInteractionsRequest{Span: &parleyv1.ListInteractionsRequest_Within{Within: d}}
		if err := validate(within); err == nil {
			t.Errorf("%s: validate(ListInteractions) = nil, want an error", name)
		}
	}
	if n := f.changeCount(); n != written {
		t.Errorf("got %d changes, want 0", n-written)
	}
}

// TestNoDurationsInLists checks that no request has durations in lists or maps, except the ttl of records, which has
// rules of its own. Package rules does not check others there.
func TestNoDurationsInLists(t *testing.T) {
	var check func(m protoreflect.MessageDescriptor, inList bool, seen map[protoreflect.FullName]bool)
	check = func(m protoreflect.MessageDescriptor, inList bool, seen map[protoreflect.FullName]bool) {
		if seen[m.FullName()] {
			return
		}
		seen[m.FullName()] = true
		for i := range m.Fields().Len() {
			field := m.Fields().Get(i)
			inner := field.Message()
			if inner == nil {
				continue
			}
			within := inList || field.IsList() || field.IsMap()
			if within && inner.FullName() == "google.protobuf.Duration" && m.Name() != "RecordWrite" {
				t.Errorf("%s is in a list or a map", field.FullName())
			}
			if within && !inList {
				check(inner, true, make(map[protoreflect.FullName]bool))
			} else {
				check(inner, inList, seen)
			}
		}
	}
	for _, method := range methods() {
		check(method.Input(), false, make(map[protoreflect.FullName]bool))
	}
}
