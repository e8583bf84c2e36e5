/**
 * Spring AI: a repository of chat memories in Parley. Start at {@link dev.parley.springai.ParleyChatMemoryRepository}.
 */
package dev.parley.springai;
