package store_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// TestSplice puts frames into every message of the API that contains kept messages, and checks that
// they decode to the same messages.
func TestSplice(t *testing.T) {
	all := frames(t, "one", "two", "")
	want, err := all.Messages()
	if err != nil {
		t.Fatal(err)
	}
	spliced := make(map[string]bool)
	message := new(parleyv1.Message).ProtoReflect().Descriptor()
	protoregistry.GlobalFiles.RangeFilesByPackage("parley.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Messages().Len() {
			d := file.Messages().Get(i)
			for j := range d.Fields().Len() {
				field := d.Fields().Get(j)
				if field.Message() != message || !field.IsList() || strings.HasSuffix(string(d.Name()), "Request") {
					continue
				}
				spliced[string(d.Name())] = true
				if field.Number() != store.FrameField {
					t.Errorf("field %s has number %d, want %d", field.FullName(), field.Number(), store.FrameField)
					continue
				}
				got, err := splice(d, all)
				if err != nil {
					t.Errorf("%s: %v", d.Name(), err)
					continue
				}
				list := got.ProtoReflect().Get(got.ProtoReflect().Descriptor().Fields().ByNumber(store.FrameField)).List()
				if list.Len() != len(want) {
					t.Errorf("%s decoded to %d messages, want %d", d.Name(), list.Len(), len(want))
					continue
				}
				for k, m := range want {
					if diff := cmp.Diff(m, list.Get(k).Message().Interface(), protocmp.Transform()); diff != "" {
						t.Errorf("%s, message %d (-want +got):\n%s", d.Name(), k, diff)
					}
				}
			}
		}
		return true
	})
	for _, name := range []string{"LoadConversationResponse", "ListMessagesResponse", "GetContextResponse", "ExportConversationsResponse", "RoutingSummary", "TurnFinished"} {
		if !spliced[name] {
			t.Errorf("%s has no repeated field of messages", name)
		}
	}
}

// splice encodes a message of type d that contains only the frames as unknown fields, and decodes
// it.
func splice(d protoreflect.MessageDescriptor, all store.Frames) (proto.Message, error) {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		return nil, err
	}
	sent, received := kind.New(), kind.New()
	sent.SetUnknown(protoreflect.RawFields(all))
	encoded, err := proto.Marshal(sent.Interface())
	if err != nil {
		return nil, err
	}
	return received.Interface(), proto.Unmarshal(encoded, received.Interface())
}
