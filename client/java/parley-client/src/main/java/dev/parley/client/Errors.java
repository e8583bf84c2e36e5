package dev.parley.client;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusException;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.ProtoUtils;
import java.time.Duration;
import java.util.List;
import java.util.Map;

/** Makes exceptions from the statuses of gRPC. */
final class Errors {
    private static final String DOMAIN = "parley";
    private static final Metadata.Key<com.google.rpc.Status> DETAILS = Metadata.Key.of(
            "grpc-status-details-bin", ProtoUtils.metadataMarshaller(com.google.rpc.Status.getDefaultInstance()));

    private Errors() {}

    static ParleyException of(StatusRuntimeException cause) {
        return of(cause.getStatus(), cause.getTrailers(), cause);
    }

    static ParleyException of(Status status, Metadata trailers) {
        return of(status, trailers, new StatusException(status, trailers));
    }

    /** Converts the status of one request of a stream. */
    static ParleyException of(com.google.rpc.Status status) {
        return of(Status.fromCodeValue(status.getCode()).getCode(), status.getMessage(), status, null);
    }

    private static ParleyException of(Status status, Metadata trailers, Throwable cause) {
        com.google.rpc.Status details = com.google.rpc.Status.getDefaultInstance();
        try {
            if (trailers != null && trailers.containsKey(DETAILS)) {
                details = trailers.get(DETAILS);
            }
        } catch (IllegalArgumentException ignored) {
            // Details that cannot be decoded are left out.
        }
        String text = status.getDescription() == null ? "" : status.getDescription();
        if (text.isEmpty() && status.getCause() != null) {
            text = status.getCause().toString();
        }
        return of(status.getCode(), text, details, cause);
    }

    private static ParleyException of(Status.Code code, String text, com.google.rpc.Status status, Throwable cause) {
        String reason = "";
        Map<String, String> metadata = Map.of();
        List<FieldViolation> violations = List.of();
        Duration retryDelay = null;
        try {
            for (Any detail : status.getDetailsList()) {
                if (detail.is(ErrorInfo.class)) {
                    ErrorInfo info = detail.unpack(ErrorInfo.class);
                    if (info.getDomain().equals(DOMAIN)) {
                        reason = info.getReason();
                        metadata = Map.copyOf(info.getMetadataMap());
                    }
                } else if (detail.is(BadRequest.class)) {
                    violations = detail.unpack(BadRequest.class).getFieldViolationsList().stream()
                            .map(v -> new FieldViolation(v.getField(), v.getDescription()))
                            .toList();
                } else if (detail.is(RetryInfo.class)) {
                    var delay = detail.unpack(RetryInfo.class).getRetryDelay();
                    retryDelay = Duration.ofSeconds(delay.getSeconds(), delay.getNanos());
                }
            }
        } catch (InvalidProtocolBufferException ignored) {
            // The details so far are used.
        }
        var details = new ParleyException.Details(reason, metadata, violations, retryDelay);
        return reason.equals("REVISION_MISMATCH")
                ? new RevisionMismatchException(code, text, details, cause)
                : new ParleyException(code, text, details, cause);
    }
}
