package dev.parley.adapter;

import dev.parley.v1.Message;

/**
 * Converts the messages of a framework.
 *
 * @param <M> the type of the framework's messages
 */
public interface Codec<M> {
    /** Returns the exact form of a message in one line, such as JSON. */
    String encode(M message);

    /** Returns the message of its exact form. */
    M decode(String line);

    /**
     * Returns the role and the text of a message, for readers that are not the framework. It has no tool calls: the API
     * would not let a call go without its result, which a framework may delete alone.
     */
    Message readable(M message);

    /** Returns the message of the framework for one that another program wrote. */
    M foreign(Message message);
}
