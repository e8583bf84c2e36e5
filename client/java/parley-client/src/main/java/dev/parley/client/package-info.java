/**
 * The client of Parley, a server that stores the conversations of agent services, and a base class for agents.
 *
 * <p>Start at {@link dev.parley.client.ParleyClient} to call a server, and at {@link dev.parley.client.Agent} to
 * write an agent. The messages of the API are in {@code dev.parley.v1}.
 */
package dev.parley.client;
