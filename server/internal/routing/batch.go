package routing

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// Share is the part of a reply that a summary may use.
type Share struct {
	// Bytes is the maximum encoded size of the summary.
	Bytes int
	// Lists is true if the summary keeps its lists even if messages must be removed for them. The lists
	// are pending tool calls, types of structured data and recent agents, which have no limit of their
	// own.
	Lists bool
}

// SummarizeShare returns the summary of a conversation like [Summarize], but not larger than a share of
// a reply. shareOf returns the share for the full summary. If the full summary does not fit,
// SummarizeShare truncates its messages and, if the share does not keep them, removes its lists. The
// field Truncated of such a summary is not part of the share: it needs 3 bytes more.
func SummarizeShare(
	c *parleyv1.Conversation, messages store.Frames, o Options, shareOf func(full *parleyv1.RoutingSummary) Share,
) (*parleyv1.RoutingSummary, error) {
	summary, err := Summarize(c, messages, o)
	if err != nil {
		return nil, err
	}
	share := shareOf(summary)
	if proto.Size(summary) <= share.Bytes {
		return summary, nil
	}
	size := sizeOf(summary)
	rest := size.all - size.messages
	dropLists := !share.Lists || rest > share.Bytes
	if dropLists {
		rest -= size.lists
	}
	if left := max(1, share.Bytes-rest); o.MaxBytes <= 0 || left < o.MaxBytes {
		o.MaxBytes = left
	}
	summary, err = Summarize(c, messages, o)
	if err == nil && dropLists {
		summary.PendingToolCalls, summary.StructuredDataTypes, summary.RecentAgents = nil, nil, nil
		summary.Truncated = true
	}
	return summary, err
}

// WholeReply returns the share of a summary that is the only one in a reply of limit bytes.
func WholeReply(limit int) func(full *parleyv1.RoutingSummary) Share {
	return func(full *parleyv1.RoutingSummary) Share {
		if size := proto.Size(full); size <= limit {
			return Share{Bytes: size}
		}
		return divide([]summarySize{sizeOf(full)}, limit)[0]
	}
}

// Batch divides the bytes of a reply among several summaries. In the first pass over the summaries it
// only measures them: Share returns the full size while all of them fit. If they do not fit together,
// Divide divides the reply for a second pass.
type Batch struct {
	limit   int
	sizes   []summarySize // a summary that is not measured has size 0
	total   int
	divided []Share // nil in the first pass
}

// NewBatch returns a Batch for count summaries in a reply of limit bytes.
func NewBatch(count, limit int) *Batch {
	return &Batch{limit: limit, sizes: make([]summarySize, count)}
}

// Share returns the share of the i-th summary. In the first pass it must be called once for each summary
// that exists.
func (b *Batch) Share(i int, full *parleyv1.RoutingSummary) Share {
	if b.divided != nil {
		return b.divided[i]
	}
	b.sizes[i] = sizeOf(full)
	if b.total += b.sizes[i].all; b.total > b.limit {
		return Share{} // Only the sizes matter now, and a hundred full summaries need much memory.
	}
	return Share{Bytes: b.sizes[i].all}
}

// Divide ends the first pass. It reports whether the summaries exceed the limit together. If so, a second
// pass must compute them again, and Share returns their parts of the reply.
func (b *Batch) Divide() bool {
	if b.total <= b.limit {
		return false
	}
	b.divided = divide(b.sizes, b.limit)
	return true
}

// summarySize is the encoded size of a summary in bytes.
type summarySize struct {
	all      int
	messages int // part of all: recent messages and referenced data, which Options.MaxBytes limits
	lists    int // part of all: pending calls, types of data and agents, which have no limit
}

func sizeOf(s *parleyv1.RoutingSummary) summarySize {
	return summarySize{
		all: proto.Size(s),
		messages: len(s.ProtoReflect().GetUnknown()) + // encoded recent messages
			proto.Size(&parleyv1.RoutingSummary{
				RecentMessages: s.GetRecentMessages(), ReferencedData: s.GetReferencedData(),
			}),
		lists: proto.Size(&parleyv1.RoutingSummary{
			PendingToolCalls: s.GetPendingToolCalls(), StructuredDataTypes: s.GetStructuredDataTypes(),
			RecentAgents: s.GetRecentAgents(),
		}),
	}
}

// divide divides limit bytes of a reply among summaries. Lists have priority over messages, but they
// leave half of the bytes to messages that need them. If not all lists fit, the smallest ones do.
// Messages get equal parts. A summary that needs less than its part leaves the rest to the others.
func divide(sizes []summarySize, limit int) []Share {
	divided, messages, left := make([]Share, len(sizes)), 0, limit
	for i, size := range sizes {
		divided[i].Bytes = size.all - size.messages - size.lists
		left -= divided[i].Bytes
		messages += size.messages
	}
	reserved := min(messages, left/2)
	for _, i := range ascending(sizes, func(s summarySize) int { return s.lists }) {
		if lists := sizes[i].lists; lists <= left-reserved {
			divided[i].Lists = true
			divided[i].Bytes += lists
			left -= lists
		}
	}
	for n, i := range ascending(sizes, func(s summarySize) int { return s.messages }) {
		part := min(sizes[i].messages, left/(len(sizes)-n))
		divided[i].Bytes += part
		left -= part
	}
	return divided
}

// ascending returns the indices of sizes, sorted by the result of key.
func ascending(sizes []summarySize, key func(summarySize) int) []int {
	order := make([]int, len(sizes))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(key(sizes[a]), key(sizes[b])) })
	return order
}
