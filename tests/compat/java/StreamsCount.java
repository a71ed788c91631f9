import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.KStream;

/**
 * Kafka Streams counts the words of a topic, with a store of counts behind a change log, and tells every count of every
 * word. A word that was counted twice, or not at all, shows in the counts. The arguments: brokers, the topics to read
 * and to write, a directory for its store. The end of the standard input makes it leave.
 */
public final class StreamsCount {
  public static void main(String[] arguments) throws Exception {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", arguments[0]);
    settings.put("application.id", "counting");
    settings.put("state.dir", arguments[3]);
    settings.put("processing.guarantee", "exactly_once_v2");
    // Long enough to be killed in a transaction that has written something.
    settings.put("commit.interval.ms", 3000);
    settings.put("replication.factor", 1);
    settings.put("statestore.cache.max.bytes", 0);
    settings.put("default.key.serde", Serdes.StringSerde.class);
    settings.put("default.value.serde", Serdes.StringSerde.class);
    settings.put("consumer.auto.offset.reset", "earliest");
    settings.put("consumer.session.timeout.ms", 3000);
    settings.put("consumer.heartbeat.interval.ms", 300);
    settings.put("consumer.max.poll.records", 20);

    StreamsBuilder builder = new StreamsBuilder();
    KStream<String, String> words = builder.stream(arguments[1]);
    words.groupBy((key, word) -> word).count().toStream().mapValues(count -> Long.toString(count)).to(arguments[2]);

    try (KafkaStreams streams = new KafkaStreams(builder.build(), settings)) {
      streams.start();
      System.in.transferTo(java.io.OutputStream.nullOutputStream());
      if (!streams.close(Duration.ofSeconds(30))) {
        throw new IllegalStateException("the streams did not close");
      }
    }
  }
}
