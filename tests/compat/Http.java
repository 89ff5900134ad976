// The JDK's own HTTP server, a thread for each exchange, and its HTTP client:
// bodies are echoed and compared.
//
//     java Http.java server PORT
//     java Http.java client PORT SEED

import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;

public class Http {
    static final int ROUNDS = 30;
    static final int AT_ONCE = 10;
    static final int BODY_LEN_MAX = 1_000_000;

    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[1]);
        if (args[0].equals("server")) {
            serve(port);
        } else {
            use(port, new Random(Long.parseLong(args[2])));
        }
    }

    static void serve(int port) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
        server.setExecutor(Executors.newFixedThreadPool(AT_ONCE));
        server.createContext("/", exchange -> {
            byte[] body = exchange.getRequestBody().readAllBytes();
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
    }

    static void use(int port, Random random) throws Exception {
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        URI uri = URI.create("http://127.0.0.1:" + port + "/");
        long verified = 0;
        for (int round = 0; round < ROUNDS; round++) {
            List<byte[]> bodies = new ArrayList<>();
            List<CompletableFuture<HttpResponse<byte[]>>> answers = new ArrayList<>();
            for (int i = 0; i < AT_ONCE; i++) {
                byte[] body = new byte[1 + random.nextInt(BODY_LEN_MAX)];
                random.nextBytes(body);
                HttpRequest request = HttpRequest.newBuilder(uri)
                    .POST(HttpRequest.BodyPublishers.ofByteArray(body))
                    .build();
                bodies.add(body);
                answers.add(client.sendAsync(request, HttpResponse.BodyHandlers.ofByteArray()));
            }
            for (int i = 0; i < AT_ONCE; i++) {
                if (!Arrays.equals(answers.get(i).get().body(), bodies.get(i))) {
                    throw new IllegalStateException("body " + i + " came back wrong");
                }
                verified += bodies.get(i).length;
            }
        }
        System.out.println("verified " + verified + " bytes");
    }
}
