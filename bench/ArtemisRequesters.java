// Requests and replies of 2 KB through a broker of ActiveMQ Artemis, by JMS: six threads that
// ask and wait for the answer, and two that answer, each over a connection of its own. Prints a
// line each second, until it is ended:
//
//     id: artemis, time 1.000 s, received: 4711 msg/s
//
//     java -cp 'JARS/*' ArtemisRequesters.java PORT

import java.util.Locale;
import java.util.concurrent.atomic.LongAdder;
import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.JMSException;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Queue;
import javax.jms.Session;
import org.apache.activemq.artemis.jms.client.ActiveMQConnectionFactory;

public class ArtemisRequesters {
    static final int REQUESTERS = 6;
    static final int REPLIERS = 2;
    static final int LEN = 2048;

    /** A reply that takes longer is taken for lost. */
    static final long PATIENCE_MS = 30_000;

    static final LongAdder replies = new LongAdder();

    /** What each thread of either kind does with its own session. */
    interface Role {
        void play(Session session, Queue requests) throws JMSException;
    }

    public static void main(String[] args) throws Exception {
        ActiveMQConnectionFactory factory =
            new ActiveMQConnectionFactory("tcp://127.0.0.1:" + args[0]);
        for (int i = 0; i < REPLIERS; i++) {
            begin(factory, ArtemisRequesters::reply);
        }
        for (int i = 0; i < REQUESTERS; i++) {
            begin(factory, ArtemisRequesters::request);
        }
        long start = System.nanoTime();
        long last = start;
        while (true) {
            Thread.sleep(1000);
            long now = System.nanoTime();
            double rate = replies.sumThenReset() * 1e9 / (now - last);
            last = now;
            System.out.println(String.format(Locale.ROOT,
                "id: artemis, time %.3f s, received: %.0f msg/s", (now - start) / 1e9, rate));
        }
    }

    /** A thread with a connection; should either fail, all ends. */
    static void begin(ActiveMQConnectionFactory factory, Role role) throws JMSException {
        Connection connection = factory.createConnection();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        connection.start();
        new Thread(() -> {
            try {
                role.play(session, session.createQueue("requests"));
            } catch (JMSException | RuntimeException failure) {
                failure.printStackTrace();
                System.exit(1);
            }
        }).start();
    }

    static void request(Session session, Queue requests) throws JMSException {
        Queue answers = session.createTemporaryQueue();
        MessageConsumer consumer = session.createConsumer(answers);
        MessageProducer producer = transientProducer(session, requests);
        byte[] body = new byte[LEN];
        while (true) {
            BytesMessage request = session.createBytesMessage();
            request.writeBytes(body);
            request.setJMSReplyTo(answers);
            producer.send(request);
            Message reply = consumer.receive(PATIENCE_MS);
            if (reply == null || ((BytesMessage) reply).getBodyLength() != LEN) {
                throw new IllegalStateException("no whole reply within " + PATIENCE_MS + " ms");
            }
            replies.increment();
        }
    }

    static void reply(Session session, Queue requests) throws JMSException {
        MessageConsumer consumer = session.createConsumer(requests);
        MessageProducer producer = transientProducer(session, null);
        while (true) {
            BytesMessage request = (BytesMessage) consumer.receive();
            byte[] body = new byte[(int) request.getBodyLength()];
            request.readBytes(body);
            BytesMessage reply = session.createBytesMessage();
            reply.writeBytes(body);
            producer.send(request.getJMSReplyTo(), reply);
        }
    }

    /** To one queue, or for null to one that is named with each message. */
    static MessageProducer transientProducer(Session session, Queue to) throws JMSException {
        MessageProducer producer = session.createProducer(to);
        producer.setDeliveryMode(DeliveryMode.NON_PERSISTENT);
        return producer;
    }
}
