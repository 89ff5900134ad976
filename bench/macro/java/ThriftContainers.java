// Calls by Apache Thrift with five containers of 32 KB there and five back, as CICS' distributed program
// link has them: a server, and a load of some threads with a connection each. The first bytes of a
// container are its number, which the server answers plus one; all others are compared, too, by both.
//
//     java -cp CLASSES ThriftContainers server PORT
//     java -cp CLASSES ThriftContainers load PORT THREADS

import containers.Program;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.thrift.protocol.TBinaryProtocol;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;
import org.apache.thrift.transport.TSocket;
import org.apache.thrift.transport.TTransportException;

public final class ThriftContainers {
    static final int COUNT = 5;
    static final int LEN = 32 * 1024;

    /** What is behind the number of each container. */
    static final ByteBuffer FILLING = filling();

    private ThriftContainers() {}

    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[1]);
        if (args[0].equals("server")) {
            serve(port);
        } else {
            Load.run(Integer.parseInt(args[2]), () -> caller(port));
        }
    }

    static void serve(int port) throws TTransportException {
        TServerSocket socket = new TServerSocket(new InetSocketAddress("127.0.0.1", port));
        Program.Processor<Program.Iface> processor =
            new Program.Processor<>(channel -> channelOf(numberOf(channel) + 1));
        new TThreadPoolServer(new TThreadPoolServer.Args(socket).processor(processor)).serve();
    }

    static Load.Transaction caller(int port) throws TTransportException {
        TSocket socket = new TSocket("127.0.0.1", port);
        socket.open();
        Program.Client program = new Program.Client(new TBinaryProtocol(socket));
        return () -> {
            int number = ThreadLocalRandom.current().nextInt(Integer.MAX_VALUE);
            int answer = numberOf(program.link(channelOf(number)));
            if (answer != number + 1) {
                throw new IllegalStateException("the answer to " + number + " is " + answer);
            }
        };
    }

    static List<ByteBuffer> channelOf(int number) {
        List<ByteBuffer> channel = new ArrayList<>(COUNT);
        for (int i = 0; i < COUNT; i++) {
            channel.add(ByteBuffer.allocate(LEN).putInt(number).put(FILLING.duplicate()).flip());
        }
        return channel;
    }

    /** The number that all containers of a channel have, if they are whole. */
    static int numberOf(List<ByteBuffer> channel) {
        int number = channel.get(0).duplicate().getInt();
        boolean isWhole = channel.size() == COUNT;
        for (ByteBuffer container : channel) {
            ByteBuffer content = container.duplicate();
            isWhole &= content.remaining() == LEN && content.getInt() == number
                && content.equals(FILLING);
        }
        if (!isWhole) {
            throw new IllegalStateException("a container is not what it has to be");
        }
        return number;
    }

    private static ByteBuffer filling() {
        ByteBuffer filling = ByteBuffer.allocate(LEN - Integer.BYTES);
        while (filling.hasRemaining()) {
            filling.put((byte) (filling.position() * 31));
        }
        return filling.flip().asReadOnlyBuffer();
    }
}
