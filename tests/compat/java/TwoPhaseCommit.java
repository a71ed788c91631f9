import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.StreamSupport;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.message.EndTxnRequestData;
import org.apache.kafka.common.message.InitProducerIdRequestData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.requests.AbstractRequest;
import org.apache.kafka.common.requests.AbstractResponse;
import org.apache.kafka.common.requests.EndTxnRequest;
import org.apache.kafka.common.requests.EndTxnResponse;
import org.apache.kafka.common.requests.InitProducerIdRequest;
import org.apache.kafka.common.requests.InitProducerIdResponse;
import org.apache.kafka.common.requests.RequestHeader;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A Java producer dies with an open transaction; whoever comes after it finds that open and commits it, by Kafka's own
 * requests: the producer of Kafka 4.3 has them, but no call that sends them.
 *
 * Arguments: host, port, topic.
 */
public class TwoPhaseCommit {
    private static final String ID = "java-engine";

    private static <T extends AbstractResponse> T ask(Socket socket, ApiKeys api, AbstractRequest request, Class<T> kind)
        throws Exception {
        RequestHeader header = new RequestHeader(api, request.version(), "engine", 1);
        ByteBuffer sent = request.serializeWithHeader(header);
        DataOutputStream out = new DataOutputStream(socket.getOutputStream());
        out.writeInt(sent.remaining());
        out.write(sent.array(), sent.arrayOffset() + sent.position(), sent.remaining());
        DataInputStream in = new DataInputStream(socket.getInputStream());
        byte[] received = new byte[in.readInt()];
        in.readFully(received);
        return kind.cast(AbstractResponse.parseResponse(ByteBuffer.wrap(received), header));
    }

    private static KafkaProducer<String, String> producer(String bootstrap) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "transactional.id", ID);
        KafkaProducer<String, String> made = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        made.initTransactions();
        made.beginTransaction();
        return made;
    }

    private static List<String> committed(String bootstrap, String topic) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "isolation.level", "read_committed");
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<String, String> consumer =
                 new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            List<String> values = new ArrayList<>();
            while (consumer.position(partition) < end) {
                StreamSupport.stream(consumer.poll(Duration.ofSeconds(1)).spliterator(), false)
                    .forEach(record -> values.add(record.value()));
            }
            return values;
        }
    }

    public static void main(String[] args) throws Exception {
        String host = args[0], topic = args[2];
        int port = Integer.parseInt(args[1]);
        String bootstrap = host + ":" + port;
        KafkaProducer<String, String> dying = producer(bootstrap);
        dying.send(new ProducerRecord<>(topic, "prepared")).get();
        dying.close(Duration.ZERO);
        System.out.println("before " + committed(bootstrap, topic));

        try (Socket socket = new Socket(host, port)) {
            InitProducerIdResponse kept = ask(socket, ApiKeys.INIT_PRODUCER_ID, new InitProducerIdRequest.Builder(
                new InitProducerIdRequestData().setTransactionalId(ID).setTransactionTimeoutMs(60000)
                    .setEnable2Pc(true).setKeepPreparedTxn(true)).build((short) 6), InitProducerIdResponse.class);
            System.out.println("kept " + kept.error()
                + " " + (kept.data().producerId() == kept.data().ongoingTxnProducerId())
                + " " + (kept.data().producerEpoch() - kept.data().ongoingTxnProducerEpoch()));
            EndTxnResponse ended = ask(socket, ApiKeys.END_TXN, new EndTxnRequest.Builder(
                new EndTxnRequestData().setTransactionalId(ID).setProducerId(kept.data().producerId())
                    .setProducerEpoch(kept.data().producerEpoch()).setCommitted(true), true).build((short) 5),
                EndTxnResponse.class);
            System.out.println("ended " + Errors.forCode(ended.data().errorCode())
                + " " + (ended.data().producerEpoch() - kept.data().producerEpoch()));
        }
        KafkaProducer<String, String> next = producer(bootstrap);
        next.send(new ProducerRecord<>(topic, "next")).get();
        next.commitTransaction();
        next.close();
        System.out.println("after " + committed(bootstrap, topic));
    }
}
