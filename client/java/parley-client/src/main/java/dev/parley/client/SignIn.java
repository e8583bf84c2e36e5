package dev.parley.client;

import io.grpc.Metadata;
import io.grpc.Status;

/** How the calls of a client sign in: the token and the tenant in their headers. */
final class SignIn {
    private static final Metadata.Key<String> TOKEN =
            Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
    private static final Metadata.Key<String> TENANT =
            Metadata.Key.of("parley-tenant", Metadata.ASCII_STRING_MARSHALLER);

    private final Tokens tokens;
    private final String tenant;

    /** Makes the settings. tokens may be null, and tenant empty. */
    SignIn(Tokens tokens, String tenant) {
        this.tokens = tokens;
        this.tenant = tenant;
    }

    /** Begins a call with these headers of its caller. */
    Attempts begin(Metadata own) {
        return new Attempts(own);
    }

    /** The sign-in of one call or stream, over all its attempts. */
    final class Attempts {
        private final Metadata own;
        /** Of the newest attempt; null if it had none of the client. */
        private String token;
        /** Of the next attempt; null if the source must be asked. */
        private String nextToken;
        /** The token of the newest attempt replaced a refused one. */
        private boolean replaced;

        private Attempts(Metadata own) {
            this.own = own;
        }

        /** Returns the headers of the next attempt. */
        Metadata headers() {
            var headers = new Metadata();
            headers.merge(own);
            if (!tenant.isEmpty() && !headers.containsKey(TENANT)) {
                headers.put(TENANT, tenant);
            }
            if (tokens != null && !headers.containsKey(TOKEN)) {
                token = nextToken == null ? tokens.next(false) : nextToken;
                nextToken = null;
                headers.put(TOKEN, "Bearer " + token);
            }
            return headers;
        }

        /** Records that the server has accepted the newest token: it has sent a message. */
        void accepted() {
            replaced = false;
        }

        /** Reports whether to make another attempt after this error, because the source has replaced the token. */
        boolean replace(ParleyException error) {
            if (error.code() != Status.Code.UNAUTHENTICATED || token == null || replaced) {
                return false;
            }
            String other = tokens.next(true);
            if (other.equals(token)) {
                return false;
            }
            nextToken = other;
            replaced = true;
            return true;
        }
    }
}
