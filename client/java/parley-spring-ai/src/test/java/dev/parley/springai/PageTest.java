package dev.parley.springai;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.parley.client.Parleyd;
import dev.parley.client.Snippets;
import org.junit.jupiter.api.Test;

/** The snippet of client/adapters.md. */
class PageTest {
    @Test
    void theSnippetKeepsAMemory() throws Exception {
        String snippet = Snippets.of(Parleyd.repository().resolve("client/adapters.md")).get("Spring AI");
        try (var server = Parleyd.start()) {
            assertEquals(
                    "Which libraries keep state?\nZustand and Jotai do.\n",
                    Snippets.run(snippet.replace("127.0.0.1:50051", server.address())));
        }
    }
}
