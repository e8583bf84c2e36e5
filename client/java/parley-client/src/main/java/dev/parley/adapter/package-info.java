/**
 * What the adapters for agent frameworks share. Programs need it only to find the conversations of an adapter: see
 * {@link dev.parley.adapter.ConversationIds}.
 */
package dev.parley.adapter;
