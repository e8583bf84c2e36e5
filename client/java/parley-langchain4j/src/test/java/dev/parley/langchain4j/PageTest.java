package dev.parley.langchain4j;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.parley.client.Parleyd;
import dev.parley.client.Snippets;
import org.junit.jupiter.api.Test;

/** The snippet of client/adapters.md. */
class PageTest {
    @Test
    void theSnippetKeepsAMemory() throws Exception {
        String snippet = Snippets.of(Parleyd.repository().resolve("client/adapters.md")).get("LangChain4j");
        try (var server = Parleyd.start()) {
            String printed = Snippets.run(snippet.replace("127.0.0.1:50051", server.address()));
            assertEquals(2, printed.lines().count(), printed);
            assertTrue(printed.contains("Which libraries keep state?") && printed.contains("Zustand"), printed);
        }
    }
}
