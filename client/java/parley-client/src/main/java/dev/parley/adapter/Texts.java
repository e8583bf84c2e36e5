package dev.parley.adapter;

import java.nio.charset.StandardCharsets;

/** Texts whose limits are bytes of UTF-8. */
final class Texts {
    private Texts() {}

    /** Returns the start of a text: at most these bytes, without a part of a character. */
    static String cut(String text, int bytes) {
        byte[] encoded = text.getBytes(StandardCharsets.UTF_8);
        if (encoded.length <= bytes) {
            return text;
        }
        int end = bytes;
        while (end > 0 && (encoded[end] & 0xC0) == 0x80) {
            end--; // The byte after the cut continues a character.
        }
        return new String(encoded, 0, end, StandardCharsets.UTF_8);
    }
}
