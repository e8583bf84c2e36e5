package gateway

import (
	"bytes"
	"encoding/json"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// FuzzJSON: appendJSON writes what protojson writes and returns an error when protojson does.
func FuzzJSON(f *testing.F) {
	kinds := []proto.Message{
		new(parleyv1.ImportConversationsRequest), new(parleyv1.TurnEvent), new(parleyv1.GetStatsResponse),
		new(parleyv1.BackupStoreResponse),
		new(parleyv1.UpdateConversationRequest), new(parleyv1.Interaction), new(parleyv1.RoutingSummary),
		new(parleyv1.StructuredData),
	}
	for _, seed := range []struct {
		kind int
		text string
	}{
		{0, `{"conversation": {"id": "a:b", "labels": {"z": "", "a": "\"\\\u0000\b\f\n\r\t\u001f\u007fä中😀</script>"}, "retention": {"ttl": "3600.5s", "maxMessages": 3},
			"createTime": "2026-11-20T08:30:00Z", "updateTime": "0001-01-01T00:00:00.000001Z"}, "messages": [{}, {"role": "ROLE_USER", "sequence": -1},
			{"structuredData": [{"type": "t", "value": {"b": [null, true, 1e300, -0.5, 1e-7, {}, []], "a": "x"}}], "toolResult": {"isError": true}}], "overwrite": true}`},
		{1, `{"index": 3, "textDelta": {"text": "hi", "offset": 1}}`},
		{2, `{"conversationCount": "9007199254740993", "dataBytes": "-1", "startTime": "9999-12-31T23:59:59.999999999Z"}`},
		{3, `{"chunk": "AP8=", "sizeBytes": "3"}`},
		{4, `{"updateMask": "title,retention.maxMessages", "ifVersion": 0}`},
		{5, `{"metadata": {"k": 1.5, "": {"": null}}, "role": 17}`},
		{7, `{"value": null}`},
		{7, `{"value": -0.000000000123}`},
	} {
		m := proto.Clone(kinds[seed.kind])
		if err := protojson.Unmarshal([]byte(seed.text), m); err != nil {
			f.Fatal(err)
		}
		wire, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(seed.kind), wire)
	}
	for _, wire := range []string{
		"\x12\x00", // A value without a kind.
		"\x12\x09\x11\x00\x00\x00\x00\x00\x00\xf0\x7f", // A number that is not finite.
	} {
		f.Add(uint8(7), []byte(wire))
	}
	f.Fuzz(func(t *testing.T, kind uint8, wire []byte) {
		m := proto.Clone(kinds[int(kind)%len(kinds)])
		if proto.Unmarshal(wire, m) != nil {
			return
		}
		got, err := appendJSON([]byte("x"), m)
		written, wantErr := protojson.Marshal(m)
		if (err != nil) != (wantErr != nil) {
			t.Fatalf("appendJSON(%v) error = %v, want %v", m, err, wantErr)
		}
		want := bytes.NewBufferString("x")
		if err == nil {
			if err := json.Compact(want, written); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want.Bytes()) {
				t.Fatalf("appendJSON(%v)\n got %s\nwant %s", m, got, want)
			}
		}
	})
}
