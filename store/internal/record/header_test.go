package record_test

import (
	"iter"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// pad adds an unknown field of size bytes to the ttl of a header, as requests to earlier versions could.
func pad(r *record.Record, size int) {
	unknown := protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), make([]byte, size))
	r.Conversation().GetRetention().GetTtl().ProtoReflect().SetUnknown(protoreflect.RawFields(unknown))
}

// TestPaddedHeader reads headers with unknown fields that an earlier version stored. A header that
// is too large for a reply loses them. The other headers retain them.
func TestPaddedHeader(t *testing.T) {
	for _, test := range []struct {
		name   string
		size   int
		remain bool
	}{{"small", 100, true}, {"large", store.MaxHeaderBytes, false}, {"nearly a request", 4 << 20, false}} {
		t.Run(test.name, func(t *testing.T) {
			want := sample(t)
			want.Prompt = []byte("be brief")
			plain := proto.CloneOf(want.Conversation())
			pad(want, test.size)
			value := marshal(t, want)
			if test.remain {
				plain = want.Conversation()
			}
			for name, unmarshal := range map[string]func([]byte) (*record.Record, error){
				"Unmarshal": record.Unmarshal, "UnmarshalHead": record.UnmarshalHead,
			} {
				r, err := unmarshal(value)
				if err != nil || !proto.Equal(r.Conversation(), plain) || string(r.Prompt) != "be brief" {
					t.Errorf("%s = header of %d bytes, %v; want %d", name, proto.Size(r.Conversation()), err, proto.Size(plain))
				}
			}
			all := func([]byte) iter.Seq2[[]byte, []byte] {
				return func(yield func([]byte, []byte) bool) { yield(want.Key(), value) }
			}
			for _, order := range []parleyv1.ListOrder{0, parleyv1.ListOrder_LIST_ORDER_UPDATE_TIME_DESC} {
				page, err := record.BuildPage(t.Context(), &store.List{
					Tenant: "acme", PageSize: 10, Order: order,
				}, 1, 1, time.Unix(1_800_000_000, 0), all, all, nil)
				if err != nil || len(page.Entries) != 1 || !proto.Equal(page.Entries[0].GetConversation(), plain) {
					t.Errorf("BuildPage by %v = %d rows, %d damaged, %v, want the header", order, len(page.Entries), page.Damaged, err)
				}
			}
		})
	}
}

// TestPaddedHeaderIsUpdated updates a header that nearly reaches the limit with the unknown fields
// of an earlier version: the update drops them for the new fields.
func TestPaddedHeaderIsUpdated(t *testing.T) {
	o := store.Options{}.WithDefaults()
	r := sample(t)
	pad(r, store.MaxHeaderBytes-1000)
	prompt := string(make([]byte, 2000))
	out, err := record.Update(r, &store.Update{
		Tenant: "acme", ConversationID: "a", Fields: []string{"system_prompt"},
		Values: &parleyv1.Conversation{SystemPrompt: prompt},
	}, time.Unix(1_800_000_001, 0), &o)
	if err != nil {
		t.Fatal(err)
	}
	if c := out.Record.Conversation(); proto.Size(c) > 1000 || string(out.Record.Prompt) != prompt {
		t.Errorf("Update = header of %d bytes, prompt of %d", proto.Size(c), len(out.Record.Prompt))
	}
}
