package dev.parley.springai;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.net.URI;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.function.Function;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.json.JsonMapper;

/**
 * Values of the metadata of messages as JSON, and back with the same type. JSON has one type of number and no bytes: a
 * value that would come back as another type is an object with {@code $type} and {@code value}.
 */
final class Values {
    private static final JsonMapper MAPPER = JsonMapper.builder().build();
    private static final String TYPE = "$type";
    private static final String VALUE = "value";
    private static final String MAP = "map";
    private static final String BYTES = "bytes";

    /** A type whose values are written as text. */
    private record Textual(String name, Function<String, Object> parse) {}

    private static final Map<Class<?>, Textual> TEXTUAL = Map.ofEntries(
            Map.entry(Long.class, new Textual("long", Long::valueOf)),
            Map.entry(Short.class, new Textual("short", Short::valueOf)),
            Map.entry(Byte.class, new Textual("byte", Byte::valueOf)),
            Map.entry(Float.class, new Textual("float", Float::valueOf)),
            Map.entry(Double.class, new Textual("double", Double::valueOf)), // Only those that are not finite.
            Map.entry(BigInteger.class, new Textual("integer", BigInteger::new)),
            Map.entry(BigDecimal.class, new Textual("decimal", BigDecimal::new)),
            Map.entry(Instant.class, new Textual("instant", Instant::parse)),
            Map.entry(UUID.class, new Textual("uuid", UUID::fromString)),
            Map.entry(URI.class, new Textual("uri", URI::create)));

    private Values() {}

    /** Returns JSON in one line, with the keys of each object in their order. */
    static String write(Object plain) {
        return MAPPER.writeValueAsString(plain);
    }

    /** Returns the value of JSON: a map, list, text, number, boolean or null. */
    static Object read(String json) {
        return MAPPER.readValue(json, Object.class);
    }

    /**
     * Returns a value as maps, lists and values of JSON. Other objects become what Jackson makes of them, and do not
     * get their type back. Throws IllegalArgumentException if it cannot be JSON.
     */
    static Object plain(Object value) {
        if (value == null
                || value instanceof String
                || value instanceof Boolean
                || value instanceof Integer
                || value instanceof Double number && Double.isFinite(number)) {
            return value;
        }
        Textual textual = TEXTUAL.get(value.getClass());
        if (textual != null) {
            return typed(textual.name, value.toString());
        }
        if (value instanceof byte[] bytes) {
            return typed(BYTES, Base64.getEncoder().encodeToString(bytes));
        }
        if (value instanceof Map<?, ?> map) {
            Map<String, Object> plain = new TreeMap<>();
            map.forEach((key, inner) -> plain.put(String.valueOf(key), plain(inner)));
            return plain.containsKey(TYPE) ? typed(MAP, plain) : plain;
        }
        if (value instanceof Collection<?> list) {
            List<Object> plain = new ArrayList<>();
            list.forEach(inner -> plain.add(plain(inner)));
            return plain;
        }
        if (value instanceof Enum<?> constant) {
            return constant.name();
        }
        try {
            return plain(read(write(value)));
        } catch (JacksonException | StackOverflowError error) {
            throw new IllegalArgumentException(
                    "a value of " + value.getClass().getName() + " cannot be JSON: " + error.getMessage(), error);
        }
    }

    /** Returns the value of which {@link #plain} has made this. */
    static Object restored(Object plain) {
        if (plain instanceof List<?> list) {
            List<Object> values = new ArrayList<>();
            list.forEach(inner -> values.add(restored(inner)));
            return values;
        }
        if (!(plain instanceof Map<?, ?> map)) {
            return plain;
        }
        Object type = map.get(TYPE);
        Object value = map.get(VALUE);
        if (type == null) {
            return restoredMap(map);
        }
        if (type.equals(MAP)) {
            return restoredMap((Map<?, ?>) value);
        }
        if (type.equals(BYTES)) {
            return Base64.getDecoder().decode((String) value);
        }
        return TEXTUAL.values().stream()
                .filter(textual -> textual.name.equals(type))
                .findFirst()
                .orElseThrow(() -> new IllegalArgumentException("a stored value has the unknown type " + type))
                .parse
                .apply((String) value);
    }

    private static Map<String, Object> restoredMap(Map<?, ?> map) {
        Map<String, Object> values = new LinkedHashMap<>();
        map.forEach((key, inner) -> values.put((String) key, restored(inner)));
        return values;
    }

    private static Map<String, Object> typed(String type, Object value) {
        Map<String, Object> typed = new TreeMap<>();
        typed.put(TYPE, type);
        typed.put(VALUE, value);
        return typed;
    }
}
