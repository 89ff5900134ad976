// A load from some threads, without end: each repeats its transaction, and the response times are
// kept until a measurement asks for them. Each second a line says how many there were:
//
//     second 4711
//
// Orders come by standard input: `measure` begins a measurement, which is answered by `measuring`;
// `stop` ends it, and is answered by the result (the load goes on, with its connections):
//
//     measured {"transactions": 23000, "seconds": 5.01, "mean_us": 212.3, "p50_us": ..., ...}
//
// At the end of the input the load ends. Should a transaction fail, or find a payload that is not
// the right one, all ends at once, with an error.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Locale;
import java.util.concurrent.atomic.LongAdder;
import org.HdrHistogram.Histogram;
import org.HdrHistogram.Recorder;

final class Load {
    /** What a thread repeats, over a connection of its own. */
    interface Transaction {
        void run() throws Exception;
    }

    /** Opens the connection of a thread. */
    interface Opening {
        Transaction open() throws Exception;
    }

    /** Of each response time that many digits are right. */
    private static final int DIGITS = 3;

    private static final Recorder latencies = new Recorder(DIGITS);
    private static final LongAdder ended = new LongAdder();

    private Load() {}

    /** Runs the load until the end of standard input. */
    static void run(int threads, Opening opening) throws Exception {
        for (int i = 0; i < threads; i++) {
            Transaction transaction = opening.open();
            begin(() -> repeat(transaction));
        }
        begin(Load::tellSeconds);
        obey();
        System.exit(0);
    }

    private static void repeat(Transaction transaction) throws Exception {
        while (true) {
            long begun = System.nanoTime();
            transaction.run();
            latencies.recordValue(System.nanoTime() - begun);
            ended.increment();
        }
    }

    private static void tellSeconds() throws Exception {
        long last = System.nanoTime();
        while (true) {
            Thread.sleep(1000);
            long now = System.nanoTime();
            double rate = ended.sumThenReset() * 1e9 / (now - last);
            last = now;
            System.out.println(String.format(Locale.ROOT, "second %.1f", rate));
        }
    }

    private static void obey() throws Exception {
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        long begun = 0;
        String order;
        while ((order = orders.readLine()) != null) {
            // Takes what was recorded so far, and begins anew.
            Histogram histogram = latencies.getIntervalHistogram();
            long now = System.nanoTime();
            switch (order) {
                case "measure" -> {
                    begun = now;
                    System.out.println("measuring");
                }
                case "stop" -> System.out.println("measured " + json(histogram, now - begun));
                default -> throw new IllegalArgumentException("no order: " + order);
            }
        }
    }

    private static String json(Histogram histogram, long durationNs) {
        return String.format(Locale.ROOT,
            "{\"transactions\": %d, \"seconds\": %.6f, \"mean_us\": %.3f, \"p50_us\": %.3f, "
                + "\"p99_us\": %.3f, \"p999_us\": %.3f}",
            histogram.getTotalCount(), durationNs / 1e9, histogram.getMean() / 1e3,
            histogram.getValueAtPercentile(50) / 1e3, histogram.getValueAtPercentile(99) / 1e3,
            histogram.getValueAtPercentile(99.9) / 1e3);
    }

    private static void begin(Transaction work) {
        new Thread(() -> {
            try {
                work.run();
            } catch (Throwable failure) {
                failure.printStackTrace();
                // Not exit(): whatever else runs at the end of a program could wait for the peer.
                Runtime.getRuntime().halt(1);
            }
        }).start();
    }
}
