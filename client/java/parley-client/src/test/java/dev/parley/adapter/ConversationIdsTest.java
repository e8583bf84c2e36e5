package dev.parley.adapter;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.parley.client.ParleyClient;
import dev.parley.client.Parleyd;
import dev.parley.v1.CreateConversationRequest;
import dev.parley.v1.GetConversationRequest;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** The ids of conversations that adapters use. The tests of Python and TypeScript have the same. */
class ConversationIdsTest {
    private static final String LONG = "é".repeat(200);

    private record Case(List<String> ids, String want) {}

    private static final List<Case> CASES = List.of(
            new Case(List.of("user@example.com"), "user@example.com"),
            new Case(List.of("app/1"), "app/1"),
            new Case(List.of("app/1", "anna", "s 1"), "app%2F1/anna/s 1"),
            new Case(List.of("100%"), "100%25"),
            new Case(List.of(" a "), "%20a%20"),
            new Case(List.of("a\nb\u2028c\u0000"), "a%0Ab%E2%80%A8c%00"),
            new Case(List.of("."), "%2E"),
            new Case(List.of(".."), "%2E%2E"),
            new Case(List.of("..", ".."), "../.."),
            new Case(List.of("", "a", ""), "/a/"),
            new Case(List.of("👩\u200d🔬"), "👩\u200d🔬"),
            new Case(
                    List.of("a~" + "0".repeat(64)),
                    "a~" + "0".repeat(64) + "~64040922f8ccc409960b29d33028a2a1d332ac7a602dc5c1e7c16b7aa31eaae2"),
            new Case(
                    List.of(LONG),
                    "é".repeat(95) + "~df20b2aa6262e99e133aa7f3614be707d35c4155d17e2aa7cbb49da555a454c3"));

    @Test
    void eachIdIsTheDocumentedOneAndTheServerAcceptsIt() throws Exception {
        try (var server = Parleyd.start();
                var client = ParleyClient.connect(server.address())) {
            for (Case each : CASES) {
                String got = ConversationIds.of(each.ids.toArray(String[]::new));
                assertEquals(each.want, got);
                var request = CreateConversationRequest.newBuilder();
                request.getConversationBuilder().setId(got);
                client.createConversation(request.build());
                var get = GetConversationRequest.newBuilder().setConversationId(got).build();
                assertEquals(got, client.getConversation(get).getConversation().getId());
            }
        }
    }

    @Test
    void differentIdsStayDifferent() {
        var ids = List.of(
                new String[] {"a", "b", "c"},
                new String[] {"a/b", "c"},
                new String[] {"a", "b/c"},
                new String[] {"a%2Fb", "c"},
                new String[] {"a", "b", "c", ""},
                new String[] {"", "a", "b", "c"},
                new String[] {"a ", "b", "c"},
                new String[] {"a%20", "b", "c"},
                new String[] {LONG + "a", "b"},
                new String[] {LONG + "b", "b"},
                new String[] {ConversationIds.of(LONG + "b", "b")});
        Set<String> different = new HashSet<>();
        ids.forEach(each -> different.add(ConversationIds.of(each)));
        assertEquals(ids.size(), different.size());
    }

    @Test
    void idsThatCannotBeAreRefused() {
        for (var ids : List.of(new String[0], new String[] {""}, new String[] {"", ""}, new String[] {"\ud800"})) {
            assertThrows(IllegalArgumentException.class, () -> ConversationIds.of(ids));
        }
    }
}
