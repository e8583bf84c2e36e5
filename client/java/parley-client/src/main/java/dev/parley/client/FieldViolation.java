package dev.parley.client;

/**
 * A rule that one field of a request breaks.
 *
 * @param field the path of the field, such as {@code conversation.id} or {@code messages[2].content}
 * @param description the rule, for people
 */
public record FieldViolation(String field, String description) {}
