package dev.parley.client;

import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Where targets of gRPC are. */
final class Targets {
    private static final Pattern ADDRESS = Pattern.compile("(?:\\[(?<bracketed>.*)]|(?<name>[^:]*))(?::\\d+)?");
    private static final Pattern LOOPBACK4 = Pattern.compile("127\\.\\d{1,3}\\.\\d{1,3}\\.\\d{1,3}");
    private static final Pattern LOOPBACK6 =
            Pattern.compile("(?:0{0,4}:){2,7}0{0,3}1|::ffff:127\\.\\d{1,3}\\.\\d{1,3}\\.\\d{1,3}");

    private Targets() {}

    /**
     * Reports whether a target is certainly on this machine: a loopback address, localhost, a Unix socket. Returns
     * false for targets that it cannot parse.
     */
    static boolean isLocal(String target) {
        if (target.startsWith("unix:")) {
            return true;
        }
        // An authority between slashes may follow the scheme: dns://8.8.8.8/host:port.
        String address = target.replaceFirst("^dns:(?://[^/]*/)?", "");
        Matcher matcher = ADDRESS.matcher(address);
        String host = address;
        if (matcher.matches()) {
            host = matcher.group("bracketed") == null ? matcher.group("name") : matcher.group("bracketed");
        }
        host = host.toLowerCase(java.util.Locale.ROOT);
        return host.equals("localhost")
                || LOOPBACK4.matcher(host).matches()
                || LOOPBACK6.matcher(host).matches();
    }
}
