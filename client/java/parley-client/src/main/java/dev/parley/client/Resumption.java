package dev.parley.client;

/**
 * One stream for one reader, over as many calls as it takes. It does no input or output; {@link ParleyStream} makes the
 * calls.
 *
 * @param <R> the type of the replies
 * @param <T> the type of the items for the reader
 */
interface Resumption<R, T> {
    /** Begins the next call and returns it. */
    NextCall<?, ? extends R> nextCall();

    /** Returns how many nanoseconds to wait for the next reply; Long.MAX_VALUE means no limit. */
    long receiveTimeout();

    /** Records a reply of the call. Returns the item for the reader, or null. */
    T accept(R reply);

    /** Records that the reader asks for the next item. The reader's own time does not count. */
    void readerReturned();

    /** Returns the error of a call that was cancelled after receiveTimeout. */
    ParleyException silenceError();

    /** Reports whether the stream can continue with a call that has another token. */
    boolean maySignInAgain();

    /**
     * Records the end of the call. error is null if the server ended the stream normally; reached says whether the call
     * has reached a server. Returns the nanoseconds to wait before the next call, or -1 if the stream is complete.
     * Throws the error for the reader if the stream cannot resume.
     */
    long retryDelay(ParleyException error, boolean reached);

    /** A call to make. */
    record NextCall<Q, R>(io.grpc.MethodDescriptor<Q, R> method, Q request) {}
}
