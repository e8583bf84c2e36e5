package dev.parley.client;

import com.google.protobuf.Message;
import java.util.UUID;

/** Sets the request_id of requests, so that they may be sent again. */
final class RequestIds {
    private RequestIds() {}

    /** Returns the request, or a copy with a random request_id if its request_id is empty. */
    static <Q> Q fill(Q request) {
        if (!(request instanceof Message message)) {
            return request;
        }
        var field = message.getDescriptorForType().findFieldByName("request_id");
        if (field == null || !((String) message.getField(field)).isEmpty()) {
            return request;
        }
        @SuppressWarnings("unchecked")
        Q filled = (Q) message.toBuilder()
                .setField(field, UUID.randomUUID().toString())
                .build();
        return filled;
    }
}
