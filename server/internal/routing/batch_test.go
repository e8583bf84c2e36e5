package routing

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestDivide(t *testing.T) {
	// Each summary has 10 bytes that are neither messages nor lists.
	s := func(messages, lists int) summarySize {
		return summarySize{all: 10 + messages + lists, messages: messages, lists: lists}
	}
	for _, test := range []struct {
		name  string
		sizes []summarySize
		limit int
		want  []Share
	}{
		{"none", nil, 100, []Share{}},
		{"all fit", []summarySize{s(10, 0), {}, s(20, 30)}, 80, []Share{{20, true}, {0, true}, {60, true}}},
		{
			"small ones leave their rest",
			[]summarySize{s(100, 0), s(5, 0), s(100, 0)},
			115,
			[]Share{{50, true}, {15, true}, {50, true}},
		},
		{"lists have priority", []summarySize{s(100, 0), s(10, 30)}, 110, []Share{{60, true}, {50, true}}},
		{"half is reserved for messages", []summarySize{s(100, 0), s(10, 50)}, 110, []Share{{90, true}, {20, false}}},
		{"messages need less than half", []summarySize{s(10, 50), s(10, 0)}, 90, []Share{{70, true}, {20, true}}},
		{"small lists first", []summarySize{s(0, 60), s(0, 40), s(0, 50)}, 130, []Share{{10, false}, {50, true}, {60, true}}},
		{"one summary", []summarySize{s(200, 40)}, 110, []Share{{110, true}}},
		{"one summary with large lists", []summarySize{s(200, 60)}, 110, []Share{{110, false}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := divide(test.sizes, test.limit); !slices.Equal(got, test.want) {
				t.Errorf("divide(%v, %d) = %v, want %v", test.sizes, test.limit, got, test.want)
			}
		})
	}
}

// truncatedBytes is the encoded size of RoutingSummary.truncated, which is not part of a share.
const truncatedBytes = 3

// TestBatch computes a batch of summaries with several limits. The first pass has the full summaries if
// they fit together, and the second pass has summaries that fit.
func TestBatch(t *testing.T) {
	var conversations [][]*parleyv1.Message
	for n := range 4 {
		m := assistant("writer", strings.Repeat("x", 1000*n))
		for i := range 10 * n {
			m.StructuredData = append(m.StructuredData, data(fmt.Sprintf("type %d", i), ""))
		}
		conversations = append(conversations, history(m, user("next")))
	}
	pass := func(b *Batch) (total int, summaries []*parleyv1.RoutingSummary) {
		for i, messages := range conversations {
			s, err := SummarizeShare(header(messages), encode(t, messages), Options{MessageLimit: 2},
				func(full *parleyv1.RoutingSummary) Share { return b.Share(i, full) })
			if err != nil {
				t.Fatal(err)
			}
			total += proto.Size(s)
			summaries = append(summaries, s)
		}
		return total, summaries
	}
	full, _ := pass(NewBatch(len(conversations), 1<<20))
	for _, limit := range []int{full, full - 1, full / 2, full / 4} {
		b := NewBatch(len(conversations), limit)
		total, summaries := pass(b)
		if divided := b.Divide(); divided != (limit < full) {
			t.Errorf("limit %d of %d: Divide() = %t", limit, full, divided)
		} else if divided {
			total, summaries = pass(b)
		}
		if total > limit+truncatedBytes*len(summaries) {
			t.Errorf("limit %d of %d: summaries have %d bytes", limit, full, total)
		}
		if s := summaries[0]; len(s.GetPendingToolCalls())+len(s.GetStructuredDataTypes()) > 0 || s.GetTruncated() {
			t.Errorf("limit %d of %d: small summary = %v, want it complete", limit, full, s)
		}
	}
}

// TestWholeReply checks that a single summary gets all bytes of a reply and not more.
func TestWholeReply(t *testing.T) {
	messages := history(user(strings.Repeat("x", 10_000)), user("next"))
	for _, limit := range []int{1 << 20, 2000} {
		s, err := SummarizeShare(header(messages), encode(t, messages), Options{MessageLimit: 2}, WholeReply(limit))
		if err != nil {
			t.Fatal(err)
		}
		if size := proto.Size(s); size > limit+truncatedBytes || s.GetTruncated() != (limit < 10_000) {
			t.Errorf("limit %d: summary has %d bytes, truncated %t", limit, size, s.GetTruncated())
		}
	}
}
