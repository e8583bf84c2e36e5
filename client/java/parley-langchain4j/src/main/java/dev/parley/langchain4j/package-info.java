/** LangChain4j: a store of chat memories in Parley. Start at {@link dev.parley.langchain4j.ParleyChatMemoryStore}. */
package dev.parley.langchain4j;
