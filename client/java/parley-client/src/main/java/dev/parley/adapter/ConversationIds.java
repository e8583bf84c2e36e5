package dev.parley.adapter;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/** The ids of the conversations that adapters use. The adapters of all languages use the same rule. */
public final class ConversationIds {
    private static final int MAX_BYTES = 256;
    /** The length of the end of a shortened id: a tilde and a SHA-256 in hexadecimal. */
    private static final int DIGEST_BYTES = 65;

    private static final Pattern SHORTENED = Pattern.compile("~[0-9a-f]{64}\\z");
    private static final Pattern ENCODED = Pattern.compile("[%\\p{Cc}\\p{Zl}\\p{Zp}]|\\A\\p{Zs}|\\p{Zs}\\z");

    private ConversationIds() {}

    /**
     * Returns the id of the conversation for one or more ids of a framework.
     *
     * <p>The ids are joined by "/". In each of them these characters are percent-encoded as UTF-8: "%", control
     * characters, line breaks, a space as the first or last character, and "/" if there are several ids. The single ids
     * "." and ".." become "%2E" and "%2E%2E". A result of more than 256 bytes, the limit of the API, is cut to 191
     * bytes, or fewer if a character ends later; "~" and the SHA-256 of the complete result follow. A shorter result that
     * already ends like that is treated in the same way. So different ids never get the same conversation, and most ids
     * stay as they are.
     *
     * @throws IllegalArgumentException there is no id, all are empty, or one is not Unicode
     */
    public static String of(String... ids) {
        if (Arrays.stream(ids).allMatch(String::isEmpty)) {
            throw new IllegalArgumentException("the id of a conversation is empty");
        }
        String joined = Arrays.stream(ids).map(id -> encoded(id, ids.length > 1)).collect(Collectors.joining("/"));
        if (joined.equals(".") || joined.equals("..")) {
            joined = joined.replace(".", "%2E");
        }
        byte[] complete = joined.getBytes(StandardCharsets.UTF_8);
        if (complete.length <= MAX_BYTES && !SHORTENED.matcher(joined).find()) {
            return joined;
        }
        return Texts.cut(joined, MAX_BYTES - DIGEST_BYTES) + "~" + sha256(complete);
    }

    private static String encoded(String id, boolean several) {
        if (!StandardCharsets.UTF_8.newEncoder().canEncode(id)) {
            throw new IllegalArgumentException("the id \"" + id + "\" is not Unicode");
        }
        String text = ENCODED.matcher(id).replaceAll(match -> percent(match.group()));
        return several ? text.replace("/", "%2F") : text;
    }

    private static String percent(String character) {
        var encoded = new StringBuilder();
        for (byte each : character.getBytes(StandardCharsets.UTF_8)) {
            encoded.append('%').append(HexFormat.of().withUpperCase().toHexDigits(each));
        }
        return encoded.toString();
    }

    static String sha256(byte[] value) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(value));
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible); // Every JDK has it.
        }
    }
}
