package dev.parley.client;

import dev.parley.v1.AppendMessagesResponse;
import dev.parley.v1.AppendStreamRequest;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/** The requests of an appender without a reply, in the order of append. A new stream sends all of them. */
final class AppendQueue {
    /** The limit of the requests without a reply. It is also that of the server for one stream. */
    private static final int MAX_REQUESTS = 1024;
    /** The limit of the sizes of these requests together. One larger request goes alone. */
    private static final int MAX_BYTES = 4 << 20;
    /**
     * The limit of the requests without a reply for one conversation. A conversation remembers its newest 32 request
     * ids, so a request that is sent again is still known. The other half is for other writers.
     */
    private static final int MAX_REQUESTS_OF_CONVERSATION = 16;

    /** A request, its encoded size, and the future of its reply. */
    record Append(AppendStreamRequest request, int size, CompletableFuture<AppendMessagesResponse> future) {
        private String conversation() {
            return request.getAppend().getConversationId();
        }
    }

    private final Deque<Append> unsent = new ArrayDeque<>();
    /** On the current stream, before the unsent ones. */
    private final Deque<Append> sent = new ArrayDeque<>();

    private final Map<String, Integer> byConversation = new HashMap<>();
    private int bytes;
    private long added;
    private long answered;
    /** The time of the last reply or, if it is later, of the first request after it. Only valid if not empty. */
    private long waitingSince;

    boolean isEmpty() {
        return sent.isEmpty() && unsent.isEmpty();
    }

    long waitingSince() {
        return waitingSince;
    }

    /** Returns the number of requests that were ever added. */
    long added() {
        return added;
    }

    /** Reports whether the first requests that were ever added have their results. */
    boolean hasAnswered(long number) {
        return answered >= number;
    }

    /** Reports whether the request is within the limits. A single request always is. */
    boolean hasSpace(Append append) {
        return isEmpty()
                || (sent.size() + unsent.size() < MAX_REQUESTS
                        && bytes + append.size <= MAX_BYTES
                        && byConversation.getOrDefault(append.conversation(), 0) < MAX_REQUESTS_OF_CONVERSATION);
    }

    /** Adds a request at the end. */
    void add(Append append) {
        if (isEmpty()) {
            waitingSince = System.nanoTime();
        }
        added++;
        unsent.add(append);
        bytes += append.size;
        byConversation.merge(append.conversation(), 1, Integer::sum);
    }

    /** Records that another stream begins, which has to send all requests. */
    void beginStream() {
        while (!sent.isEmpty()) {
            unsent.addFirst(sent.removeLast());
        }
    }

    /** Returns the next request for the current stream and records it as sent. Returns null if there is none. */
    AppendStreamRequest nextUnsent() {
        Append append = unsent.poll();
        if (append == null) {
            return null;
        }
        sent.add(append);
        return append.request;
    }

    /**
     * Removes the request that the server answers next, and returns its future. Call noteAnswered when it has its
     * result. Returns null if the current stream has sent no request without a reply.
     */
    CompletableFuture<AppendMessagesResponse> takeAnswered() {
        Append append = sent.poll();
        if (append == null) {
            return null;
        }
        bytes -= append.size;
        byConversation.computeIfPresent(append.conversation(), (id, count) -> count == 1 ? null : count - 1);
        waitingSince = System.nanoTime();
        return append.future;
    }

    /** Records that the future of a taken request has its result. */
    void noteAnswered() {
        answered++;
    }

    /** Removes all requests, and returns their futures. */
    List<CompletableFuture<AppendMessagesResponse>> removeAll() {
        beginStream();
        List<CompletableFuture<AppendMessagesResponse>> futures = new ArrayList<>();
        unsent.forEach(append -> futures.add(append.future));
        unsent.clear();
        byConversation.clear();
        bytes = 0;
        return futures;
    }
}
