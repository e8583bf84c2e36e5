package client

import "slices"

const (
	// maxAppends and maxAppendsBytes limit the requests of an Appender without a reply. The server accepts the same
	// number in one stream.
	maxAppends      = 1024
	maxAppendsBytes = 4 << 20
	// maxConversationAppends limits the requests for one conversation without a reply. A conversation remembers its
	// newest 32 request ids, and other callers may use some of them before the Appender sends its requests again.
	maxConversationAppends = 16
	// maxAppendBytes is the limit of a request. AppendStreamRequest adds at most 5 bytes.
	maxAppendBytes = MaxGRPCBytes - 5
)

// appendQueue contains the requests of an Appender without a reply, in order.
type appendQueue struct {
	results       []*AppendResult
	sent          int            // The number of results that the present stream has sent; they are the first ones.
	bytes         int            // The size of all requests.
	conversations map[string]int // The number of requests for each conversation.
	wasEmpty      bool           // The queue was empty before its first request; the Appender resets it.
}

// add adds result unless a limit is reached. A queue that is empty has capacity for any request.
func (q *appendQueue) add(result *AppendResult) bool {
	id := result.request.GetConversationId()
	if len(q.results) == maxAppends || q.conversations[id] == maxConversationAppends ||
		len(q.results) > 0 && q.bytes+result.size > maxAppendsBytes {
		return false
	}
	q.wasEmpty = q.wasEmpty || len(q.results) == 0
	q.results = append(q.results, result)
	q.bytes += result.size
	q.conversations[id]++
	return true
}

// first returns the oldest request, or nil.
func (q *appendQueue) first() *AppendResult {
	if len(q.results) == 0 {
		return nil
	}
	return q.results[0]
}

// last returns the newest request, or nil.
func (q *appendQueue) last() *AppendResult {
	if len(q.results) == 0 {
		return nil
	}
	return q.results[len(q.results)-1]
}

// next returns the oldest request that the present stream has not sent, and counts it as sent. It returns nil if there
// is none.
func (q *appendQueue) next() *AppendResult {
	if q.sent == len(q.results) {
		return nil
	}
	q.sent++
	return q.results[q.sent-1]
}

// remove removes result. It returns false if the queue does not contain result.
func (q *appendQueue) remove(result *AppendResult) bool {
	at := slices.Index(q.results, result) // Almost always 0.
	switch at {
	case -1:
		return false
	case 0:
		q.results[0] = nil // Otherwise the array would keep it.
		q.results = q.results[1:]
	default:
		q.results = slices.Delete(q.results, at, at+1)
	}
	if at < q.sent {
		q.sent--
	}
	q.bytes -= result.size
	id := result.request.GetConversationId()
	q.conversations[id]--
	if q.conversations[id] == 0 {
		delete(q.conversations, id)
	}
	return true
}
