package io.tidelog.compat;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Copies from one topic to another in transactions: options as one JSON argument; `stall` and `go` as lines on the
 * standard input, whose end makes it leave; JSON lines out of what becomes of its transactions.
 */
public final class TransactionalCopier {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final double ABORTED_SHARE = 0.3;

  private final PrintStream lines;
  private final String group;
  private final String source;
  private final String target;
  private final Random random;
  private final KafkaProducer<byte[], byte[]> producer;
  private final KafkaConsumer<byte[], byte[]> consumer;
  private final CountDownLatch going = new CountDownLatch(1);
  private volatile boolean toStall = false;
  private volatile boolean over = false;

  private TransactionalCopier(JsonNode options, PrintStream lines) {
    this.lines = lines;
    group = options.get("group").asText();
    source = options.get("source").asText();
    target = options.get("target").asText();
    random = new Random(options.get("seed").asLong());
    Properties settings = new Properties();
    settings.put("bootstrap.servers", options.get("bootstrap").asText());
    settings.put("transactional.id", options.get("transactional_id").asText());
    producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    settings.remove("transactional.id");
    settings.put("group.id", group);
    settings.put("session.timeout.ms", 3000);
    settings.put("heartbeat.interval.ms", 300);
    settings.put("enable.auto.commit", false);
    settings.put("auto.offset.reset", "earliest");
    settings.put("isolation.level", "read_committed");
    settings.put("max.poll.records", 10);
    consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }

  public static void main(String[] arguments) throws Exception {
    // Whatever a library prints must not end up among the lines.
    PrintStream lines = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    System.setOut(System.err);
    TransactionalCopier copier = new TransactionalCopier(JSON.readTree(arguments[0]), lines);
    Thread leading = new Thread(copier::follow, "lead");
    leading.setDaemon(true);
    leading.start();
    copier.run();
  }

  private void follow() {
    try (BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
      for (String line = input.readLine(); line != null; line = input.readLine()) {
        if (line.equals("stall")) {
          toStall = true;
        } else {
          going.countDown();
        }
      }
    } catch (IOException error) {
      throw new IllegalStateException(error);
    }
    over = true;
    going.countDown();
  }

  private void run() throws InterruptedException {
    producer.initTransactions();
    tell(Map.of("event", "ready"));
    consumer.subscribe(List.of(source));
    List<Integer> told = List.of();
    boolean fenced = false;
    while (!fenced && !over) {
      ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
      List<Integer> assigned = consumer.assignment().stream().map(TopicPartition::partition).sorted().toList();
      if (!assigned.equals(told)) {
        told = assigned;
        tell(Map.of("event", "assigned", "partitions", assigned));
      }
      if (!records.isEmpty()) {
        try {
          copy(records);
        } catch (ProducerFencedException | InvalidProducerEpochException error) {
          fenced = true;
          tell(Map.of("event", "fenced", "error", error.toString()));
        }
      }
    }
    consumer.close();
    producer.close();
  }

  private void copy(ConsumerRecords<byte[], byte[]> records) throws InterruptedException {
    boolean stalled = toStall;
    toStall = false;
    boolean aborted = !stalled && random.nextDouble() < ABORTED_SHARE;
    byte[] key = (stalled ? "stalled" : aborted ? "to abort" : "to commit").getBytes(StandardCharsets.UTF_8);
    Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
    producer.beginTransaction();
    for (ConsumerRecord<byte[], byte[]> record : records) {
      producer.send(new ProducerRecord<>(target, record.partition(), key, record.value()));
      offsets.put(new TopicPartition(source, record.partition()), new OffsetAndMetadata(record.offset() + 1));
    }
    if (stalled) {
      producer.flush();
      tell(Map.of("event", "stalled"));
      going.await();
    }
    try {
      producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
      if (!aborted) {
        producer.commitTransaction();
        tell(Map.of("event", "committed"));
        return;
      }
    } catch (ProducerFencedException | InvalidProducerEpochException error) {
      throw error;
    } catch (KafkaException error) {
      tell(Map.of("event", "refused", "error", error.toString()));
    }
    producer.abortTransaction();
    tell(Map.of("event", "aborted"));
    Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(offsets.keySet());
    for (TopicPartition partition : offsets.keySet()) {
      if (committed.get(partition) == null) {
        consumer.seekToBeginning(List.of(partition));
      } else {
        consumer.seek(partition, committed.get(partition).offset());
      }
    }
  }

  private void tell(Map<String, Object> line) {
    try {
      lines.println(JSON.writeValueAsString(line));
    } catch (JsonProcessingException error) {
      throw new IllegalStateException(error);
    }
  }
}
