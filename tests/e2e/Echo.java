import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/**
 * An echo server on NIO (one selector, non-blocking channels) and a client
 * with blocking streams.
 *
 * <pre>
 * java Echo.java server PORT
 * java Echo.java client PORT SEED
 * </pre>
 *
 * The agreement with the driver is that of common.py.
 */
public final class Echo {
    private static final int CONNECTIONS = 8;
    private static final int BYTES_PER_CONNECTION = 2_000_000;
    private static final int CHUNK_LEN_MAX = 400_000;
    private static final int BUFFER_LEN = 65_536;

    /** A prime: data that slipped by a power of two never looks right again. */
    private static final int PERIOD = 1_000_003;

    /** No step of the test takes this long unless something hangs. */
    private static final int PATIENCE_S = 300;

    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[1]);
        if (args[0].equals("server")) {
            serve(port);
        } else {
            use(port, Long.parseLong(args[2]));
        }
    }

    // ---- server ------------------------------------------------------------

    private static void serve(int port) throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    accept(listener, selector);
                } else {
                    echo(key);
                }
            }
            selector.selectedKeys().clear();
        }
    }

    private static void accept(ServerSocketChannel listener, Selector selector)
            throws IOException {
        SocketChannel channel = listener.accept();
        if (channel == null) {
            return;
        }
        channel.configureBlocking(false);
        // Direct, so that the JVM hands this very memory to the system.
        channel.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(BUFFER_LEN));
    }

    /** Reads while there is nothing to write, writes what was read. */
    private static void echo(SelectionKey key) {
        SocketChannel channel = (SocketChannel) key.channel();
        ByteBuffer buffer = (ByteBuffer) key.attachment();
        try {
            if (key.isReadable()) {
                if (channel.read(buffer) < 0) {
                    channel.close();
                    return;
                }
                buffer.flip();
            }
            channel.write(buffer);
            if (buffer.hasRemaining()) {
                key.interestOps(SelectionKey.OP_WRITE);
            } else {
                buffer.clear();
                key.interestOps(SelectionKey.OP_READ);
            }
        } catch (IOException gone) {
            key.cancel();
        }
    }

    // ---- client ------------------------------------------------------------

    private static void use(int port, long seed) throws Exception {
        ExecutorService pool = Executors.newCachedThreadPool(Echo::daemon);
        List<Socket> sockets = new ArrayList<>();
        List<Future<?>> tasks = new ArrayList<>();
        for (int i = 0; i < CONNECTIONS; i++) {
            Socket socket = connect(port, i % 2 == 0);
            byte[] pattern = pattern(seed + i);
            sockets.add(socket);
            tasks.add(pool.submit(() -> { send(socket, pattern); return null; }));
            tasks.add(pool.submit(() -> { receive(socket, pattern); return null; }));
        }
        for (Future<?> task : tasks) {
            task.get(PATIENCE_S, TimeUnit.SECONDS);
        }
        System.out.println("verified " + CONNECTIONS * BYTES_PER_CONNECTION + " bytes");
        while (System.in.read() >= 0) {
            continue;
        }
        for (Socket socket : sockets) {
            halfClose(socket);
        }
    }

    private static Thread daemon(Runnable body) {
        Thread thread = new Thread(body);
        thread.setDaemon(true);
        return thread;
    }

    /** Java has two kinds of blocking sockets, with code of their own each. */
    private static Socket connect(int port, boolean asChannel) throws IOException {
        InetSocketAddress address =
                new InetSocketAddress(InetAddress.getLoopbackAddress(), port);
        if (asChannel) {
            return SocketChannel.open(address).socket();
        }
        Socket socket = new Socket();
        socket.connect(address, PATIENCE_S * 1000);
        return socket;
    }

    /** Two periods of bytes, so that any window of one period is in one piece. */
    private static byte[] pattern(long seed) {
        byte[] once = new byte[PERIOD];
        new Random(seed).nextBytes(once);
        byte[] twice = Arrays.copyOf(once, 2 * PERIOD);
        System.arraycopy(once, 0, twice, PERIOD, PERIOD);
        return twice;
    }

    private static void send(Socket socket, byte[] pattern) throws IOException {
        OutputStream out = socket.getOutputStream();
        Random random = new Random(pattern[0]);
        int position = 0;
        while (position < BYTES_PER_CONNECTION) {
            // Even in the logarithm: short and long chunks alike.
            int wish = (int) Math.pow(CHUNK_LEN_MAX, random.nextDouble());
            int length = Math.min(wish, BYTES_PER_CONNECTION - position);
            out.write(pattern, position % PERIOD, length);
            position += length;
        }
    }

    private static void receive(Socket socket, byte[] pattern) throws IOException {
        InputStream in = socket.getInputStream();
        byte[] buffer = new byte[BUFFER_LEN];
        int position = 0;
        while (position < BYTES_PER_CONNECTION) {
            int length = in.read(buffer);
            if (length < 0) {
                throw new IOException("connection ended at byte " + position);
            }
            int start = position % PERIOD;
            int first = Arrays.mismatch(buffer, 0, length, pattern, start, start + length);
            if (first >= 0) {
                throw new IOException("byte " + (position + first) + " is wrong");
            }
            position += length;
        }
    }

    /** After our end of file the server must send its own, and nothing else. */
    private static void halfClose(Socket socket) throws IOException {
        socket.shutdownOutput();
        if (socket.getInputStream().read() >= 0) {
            throw new IOException("data after the end");
        }
        socket.close();
    }
}
